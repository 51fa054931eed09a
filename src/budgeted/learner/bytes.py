"""What a learner keeps between steps, in bytes, and how it stays within its budget when something grows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from budgeted.budget import Rule
from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError
from budgeted.learner.parts import make_retrieval
from budgeted.replay import bytes_per_slot

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner


def bytes_by_item(learner: Learner, rule: Rule) -> dict[str, int]:
    """Parameters, statistics, memory, and what retrieval and freezing keep; rows of declared classes are reserved."""
    head = learner.head
    rows = max(head.out_features, learner.data.classes or 0) - head.out_features
    parameters = sum(p.numel() * p.element_size() for p in learner.model.parameters()) + rows * _row_bytes(learner)
    waiting = learner.stream_batch * learner.method.choices
    items = {
        "parameters": parameters,
        "buffers": sum(b.numel() * b.element_size() for b in learner.model.buffers()),
        "memory": learner.memory.nbytes(rule),
        "stream batch": waiting * bytes_per_slot(learner.memory.columns[:2], rule),
        "selection": learner.selection.nbytes(),
        "retrieval": learner.retrieval.nbytes(),
        "method": learner.method.nbytes() + _reserved_copies(learner, learner.method, head.out_features + rows),
        "freezing": learner.freezing.nbytes()
        + _reserved_copies(learner, learner.freezing.policy, head.out_features + rows),
    }
    return {name: count for name, count in items.items() if count}


def _copies_of_head(learner: Learner, part: Keeps) -> list[int]:
    """Rows of whatever a part keeps for every weight of the head (a teacher, a Fisher diagonal): it will grow."""
    weight = f"{learner.freezing.chain.head}.weight"
    kept = (getattr(part, name) for name in part.kept_names())
    return [len(each[weight]) for each in kept if isinstance(each, dict) and weight in each]


def _reserved_copies(learner: Learner, part: Keeps, rows: int) -> int:
    """Bytes that copies of the head will take when it has so many rows, beyond what they take now."""
    return sum((rows - there) * _row_bytes(learner) for there in _copies_of_head(learner, part))


def working_bytes(learner: Learner) -> dict[str, int]:
    """Memory beside the budget: optimizer state, gradients, and indices that the content determines."""
    moments = sum(
        value.numel() * value.element_size()
        for state in learner.optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    )
    gradients = sum(p.numel() * p.element_size() for p in learner.model.parameters())
    index = learner.memory.index_nbytes() + learner.retrieval.index_nbytes()
    return {"optimizer": moments, "gradients": gradients, "index": index}


def give_up_slots(learner: Learner) -> None:
    """When something else grew, give up as many slots as it takes to stay within the bytes."""
    budget, capacity = learner.budget.bytes, learner.memory.capacity
    if budget is None or capacity is None:
        return
    over = learner.nbytes() - budget
    if over <= 0:
        return
    per_slot = bytes_per_slot(learner.memory.columns)
    capacity -= -(-over // per_slot)
    if capacity < 1:
        fixed = learner.nbytes() - learner.memory.nbytes()
        raise _too_small(budget, "the model and one slot", fixed + per_slot)
    leaving = max(0, len(learner.memory) - capacity)
    given_up = learner.selection.give_up(learner.memory, leaving, learner.generators["selection"]) if leaving else ()
    learner.memory.shrink(capacity, [int(slot) for slot in given_up])


def refuse_class_without_room(learner: Learner) -> None:
    """Before anything changes: does what a new class needs in head and retrieval fit beside one slot?"""
    budget = learner.budget.bytes
    if budget is None:
        return
    declared = learner.data.classes or 0
    classes = max(len(learner.class_labels) + 1, declared)
    rows = max(0, classes - max(learner.head.out_features, declared))
    part, facts = learner.method.retrieval, replace(learner.facts, classes=classes)
    retrieval = make_retrieval(part, learner.settings.retrieval, facts)
    copies = [rows for part in (learner.method, learner.freezing.policy) for rows in _copies_of_head(learner, part)]
    growth = rows * _row_bytes(learner) * (1 + len(copies)) + max(0, retrieval.nbytes() - learner.retrieval.nbytes())
    smallest = learner.nbytes() - learner.memory.nbytes() + growth + bytes_per_slot(learner.memory.columns)
    if smallest > budget:
        raise _too_small(budget, f"{classes} classes and one slot", smallest)


def _row_bytes(learner: Learner) -> int:
    return 4 * (learner.head.in_features + (learner.head.bias is not None))


def _too_small(budget: int, what: str, smallest: int) -> BudgetedError:
    return BudgetedError(f"{budget} bytes do not hold {what}: the smallest possible budget is {smallest}B")
