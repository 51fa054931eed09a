"""What a learner keeps between steps, in bytes, and how it stays within its budget when something grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.budget import Rule
from budgeted.errors import BudgetedError
from budgeted.learner.parts import make_retrieval
from budgeted.replay import bytes_per_slot

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner


def bytes_by_item(learner: Learner, rule: Rule) -> dict[str, int]:
    """Parameters, statistics, memory, and what the parts keep; what declared classes will need is reserved."""
    model, declared = learner.model, learner.problem.classes or 0
    growth = learner.problem.growth(learner.network, declared)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters()) + growth
    waiting = learner.stream_batch * learner.method.choices
    items = {
        "parameters": parameters,
        "buffers": sum(b.numel() * b.element_size() for b in model.buffers()),
        "memory": learner.memory.nbytes(rule),
        "stream batch": waiting * bytes_per_slot(learner.memory.columns[: len(learner.problem.columns()) + 1], rule),
        "selection": learner.selection.nbytes(),
        "retrieval": learner.retrieval.nbytes(),
        "method": learner.method.nbytes() + _reserved_copies(learner, declared),
        "freezing": learner.freezing.nbytes(parameters),
    }
    return {name: count for name, count in items.items() if count}


def _copies_of_head(learner: Learner) -> list[int]:
    """Rows of whatever the method keeps for every weight of the head (a teacher, a Fisher diagonal): it will grow."""
    weight = f"{learner.freezing.chain.head}.weight"
    kept = (getattr(learner.method, name) for name in learner.method.kept_names())
    return [len(each[weight]) for each in kept if isinstance(each, dict) and weight in each]


def _reserved_copies(learner: Learner, declared: int) -> int:
    """Bytes that copies of the head will take when all classes are there, beyond what they take now."""
    copies = _copies_of_head(learner)
    if not copies:
        return 0
    head = learner.head
    row = 4 * (head.in_features + (head.bias is not None))
    return sum((max(head.out_features, declared) - there) * row for there in copies)


def working_bytes(learner: Learner) -> dict[str, int]:
    """Memory beside the budget: optimizer state, gradients, and indices that the content determines."""
    return {
        **learner.network.working_nbytes(),
        "index": learner.memory.index_nbytes() + learner.retrieval.index_nbytes(),
    }


def fit_slots(learner: Learner) -> None:
    """Where nobody said how many slots there are: as many as fit beside everything else."""
    budget = learner.budget.bytes
    if budget is None or learner.slots is not None:
        return
    fixed, per_slot = learner.nbytes() - learner.memory.nbytes(), bytes_per_slot(learner.memory.columns)
    learner.slots = (budget - fixed) // per_slot
    if learner.slots < 1:
        raise _too_small(budget, "the model and one slot", fixed + per_slot)
    learner.memory = learner.parts.memory()
    learner.memory.watch(learner.retrieval)


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
    classes = max(len(learner.class_labels) + 1, learner.problem.classes or 0)
    retrieval = make_retrieval(learner.method.retrieval, learner.settings.retrieval, learner.parts.facts(classes))
    declared = learner.problem.growth(learner.network, learner.problem.classes or 0)
    growth = (learner.problem.growth(learner.network, classes) - declared) * (1 + len(_copies_of_head(learner)))
    growth += max(0, retrieval.nbytes() - learner.retrieval.nbytes())
    smallest = learner.nbytes() - learner.memory.nbytes() + growth + bytes_per_slot(learner.memory.columns)
    if smallest > budget:
        raise _too_small(budget, f"{classes} classes and one slot", smallest)


def _too_small(budget: int, what: str, smallest: int) -> BudgetedError:
    return BudgetedError(f"{budget} bytes do not hold {what}: the smallest possible budget is {smallest}B")
