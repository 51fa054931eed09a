"""Slots that a byte budget holds under every method, by both rules, beside those that the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from budgeted import models, streams
from budgeted.bench.published import PAPER_SETTINGS, SLOT_REASONS
from budgeted.budget import RULES, Rule
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.methods import Method
from budgeted.replay import bytes_per_slot
from budgeted.runs.plan import MOMENTS, facts_of, fixed_bytes, grown_bytes, slots_beside


@dataclass(frozen=True)
class Slots:
    """What one rule gives: slots, the bytes of one, of the model, and of what the method keeps beside them."""

    slots: int
    per_slot: int
    model: int
    """parameters and statistics"""
    beside: Mapping[str, int]

    def __str__(self) -> str:
        return " + ".join([f"{self.per_slot:,} a slot", *(f"{name} {count:,}" for name, count in self.beside.items())])


@dataclass(frozen=True)
class SlotRow:
    """One method within one byte budget."""

    dataset: str
    model: str
    budget: int
    batch_size: int
    method: str
    under: Mapping[Rule, Slots]
    """by rule; a rule under which not even one slot fits is missing"""
    printed: int | None
    """the paper's row"""
    reason: str
    """why ours under rule `paper` is not the paper's, or why nothing fits"""

    def slots(self, rule: Rule) -> int | None:
        return self.under[rule].slots if rule in self.under else None


def slot_row(method: type[Method], dataset: str, model: str, budget: int, batch_size: int) -> SlotRow:
    """What `budgeted plan` gives for one method; needs no data on disk."""
    info = streams.info(dataset)
    known = PAPER_SETTINGS.get(dataset)
    comparable = known is not None and (known.model, known.budget) == (model, budget)
    printed = known.rows.get(method.name) if known is not None and comparable else None
    reason = SLOT_REASONS.get((dataset, method.name), "") if comparable else ""
    network = models.build(model, classes=info.classes, input_shape=info.input_shape)
    learner = Learner(network, method, facts_of(info), slots=1, settings=Settings(LearnerSettings(batch_size)))
    under: dict[Rule, Slots] = {}
    for rule in RULES:
        items = fixed_bytes(learner, model, rule)
        if rule == "real" and learner.network.grows:  # the last of the rules: it grows for good
            items["growth"] = grown_bytes(learner, MOMENTS - 1)
        try:
            slots = slots_beside(sum(items.values()), learner, model, budget, rule)
        except BudgetedError as refused:
            reason = str(refused)
            continue
        of_model = items.pop("parameters") + items.pop("buffers", 0)
        under[rule] = Slots(slots, bytes_per_slot(learner.memory.columns, rule), of_model, items)
    learner.close()
    return SlotRow(dataset, model, budget, batch_size, method.name, under, printed, reason)


def paper_rows(methods: Iterable[type[Method]]) -> list[SlotRow]:
    """All methods within every byte budget that the paper's tables imply."""
    return [
        slot_row(method, each.dataset, each.model, each.budget, each.batch_size)
        for each in PAPER_SETTINGS.values()
        for method in methods
    ]
