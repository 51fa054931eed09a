"""What a learner keeps between steps, in bytes, and how it stays within its budget when something grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.budget import Rule
from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError
from budgeted.network import Network
from budgeted.replay import bytes_per_slot, label_column
from budgeted.replay.selection import shrink_to

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
        "average": _average_bytes(learner, growth),
        "norms": 0 if learner.network.norms is None else learner.network.norms.nbytes(),
        "memory": learner.memory.nbytes(rule),
        "stream batch": waiting * bytes_per_slot((*learner.problem.columns(), label_column(declared or None)), rule),
        "selection": learner.selection.nbytes(),
        "retrieval": learner.retrieval.nbytes(),
        "method": learner.method.nbytes() + _beside(learner) + _reserved_copies(learner, learner.method, declared),
        "freezing": learner.freezing.nbytes()
        + sum(network.freezing.nbytes() for network in _networks(learner.method))
        + _reserved_copies(learner, learner.freezing.policy, declared),
    }
    return {name: count for name, count in (items | learner.reserved).items() if count}


def _average_bytes(learner: Learner, growth: int) -> int:
    """Of the averaged weights, with what they will grow by beside the weights themselves."""
    average = learner.network.average
    return 0 if average is None else average.nbytes() + growth * average.element_bytes // 4


def _beside(learner: Learner) -> int:
    """Layers that the method's loss reads and the model does not."""
    return sum(p.numel() * p.element_size() for p in learner.network.beside.parameters())


def _copies_of_head(learner: Learner, part: Keeps) -> list[int]:
    """Rows of whatever a part keeps for every weight of the head (a teacher, a Fisher diagonal, another network, or a
    part that keeps such): it will grow."""
    weight = f"{learner.freezing.chain.head}.weight"
    found: list[int] = []
    for each in (getattr(part, name) for name in part.kept_names()):
        if isinstance(each, Network):
            found.append(each.linear_head.out_features)
        elif isinstance(each, Keeps):
            found += _copies_of_head(learner, each)
        elif isinstance(each, dict) and weight in each:
            found.append(len(each[weight]))
    return found


def _networks(part: Keeps) -> list[Network]:
    """Those that a part keeps."""
    return [each for name in part.kept_names() if isinstance(each := getattr(part, name), Network)]


def _reserved_copies(learner: Learner, part: Keeps, declared: int) -> int:
    """Bytes that copies of the head will take when all classes are there, beyond what they take now."""
    copies = _copies_of_head(learner, part)
    if not copies:
        return 0
    head = learner.head
    row = 4 * (head.in_features + (head.bias is not None))
    return sum((max(head.out_features, declared) - there) * row for there in copies)


def working_bytes(learner: Learner) -> dict[str, int]:
    """Memory beside the budget: optimizer state, gradients, and indices that the content determines."""
    items = learner.network.working_nbytes()
    for network in _networks(learner.method):
        items = {name: count + network.working_nbytes()[name] for name, count in items.items()}
    return {
        **items,
        "index": learner.memory.index_nbytes() + learner.retrieval.index_nbytes(),
    }


def fit_slots(learner: Learner) -> None:
    """Where nobody said how many slots there are, or they differ in bytes: as many bytes for the memory as are left
    beside everything else."""
    if learner.budget.bytes is not None and (learner.slots is None or learner.memory.varying):
        learner.memory = learner.parts.memory(_left_for_memory(learner, learner.budget.bytes))
        learner.memory.watch(learner.retrieval)
    give_up_slots(learner)


def give_up_slots(learner: Learner) -> bool:
    """Something may have grown: as many samples leave as it takes to stay within the bytes. Whether it had to be."""
    budget, memory = learner.budget.bytes, learner.memory
    if budget is None or memory.capacity is None or learner.nbytes() <= budget:
        return False
    shrink_to(memory, learner.selection, _left_for_memory(learner, budget), learner.generators["selection"])
    return True


def _left_for_memory(learner: Learner, budget: int) -> int:
    fixed = learner.nbytes() - learner.memory.nbytes()
    if budget - fixed < learner.memory.smallest_limit:
        raise _too_small(budget, "the model and one slot", fixed + learner.memory.smallest_limit)
    return budget - fixed


def refuse_class_without_room(learner: Learner) -> None:
    """Before anything changes: does what a new class needs in head and retrieval fit beside one slot?"""
    budget = learner.budget.bytes
    if budget is None:
        return
    classes = max(len(learner.class_labels) + 1, learner.problem.classes or 0)
    retrieval = learner.parts.retrieval_of(learner.parts.facts(classes))
    declared = learner.problem.growth(learner.network, learner.problem.classes or 0)
    copies = [row for part in (learner.method, learner.freezing.policy) for row in _copies_of_head(learner, part)]
    grown = learner.problem.growth(learner.network, classes) - declared
    average = learner.network.average
    growth = grown * (1 + len(copies)) + (0 if average is None else grown * average.element_bytes // 4)
    growth += max(0, retrieval.nbytes() - learner.retrieval.nbytes())
    smallest = learner.nbytes() - learner.memory.nbytes() + growth + learner.memory.smallest_limit
    if smallest > budget:
        raise _too_small(budget, f"{classes} classes and one slot", smallest)


def _too_small(budget: int, what: str, smallest: int) -> BudgetedError:
    return BudgetedError(f"{budget} bytes do not hold {what}: the smallest possible budget is {smallest}B")
