"""X-DER: extended dark experience replay (Boschini et al., TPAMI 2022), over DER++.

The head has a row for every declared class from the start. Rows are of the past (met before the last boundary), of the
present, or of the future, which is divided into heads. What DER++ stores of a sample goes stale: it says nothing of
classes that came later. X-DER prepares the heads of the future for them, and keeps what is stored up to date:

    loss = DER++'s, labels told apart among the rows of their own side alone
         + consistency * supervised contrast of augmented views, in every head of the future
         + margin_weight * (what future logits exceed, by less than the margin, the own head's
                            + what past chances exceed, by less than the margin, the present's)

    stored logits of a sample of the past: rows of present and future become what the model says now, scaled down below
    the logit of its label; in a step with probability 1 / replays since the boundary, and at every boundary
    stored logits of a new sample: those of the past are scaled down below that of its label

Cost: the step is DER++'s; all views of the batch and of as many more stored samples are run forwards and backwards in
the same step, and the memory's samples of the past once forwards at a boundary. Bytes: as DER++, and one per slot.
Boundary-free reading and deviations, ours / paper / published code: docs/methods/x-der.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.limits import limited
from budgeted.methods.der import LOGITS, DarkExperienceReplay
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Step
from budgeted.problems.batches import joined
from budgeted.replay import Column, Slots

REPLAYS = "replays"
_MOST_REPLAYS = 255  # that a byte counts


@METHODS.register("x-der")
@dataclass
class ExtendedDarkExperienceReplay(DarkExperienceReplay):
    """DER++ whose head expects classes to come, with margins between past, present and future, and logits kept fresh"""

    kept = ("starts",)
    boundaries = True
    whole_head = True

    heads: int = limited(5, "at least 1")
    """into how many heads the declared classes are divided"""
    views: int = limited(2, "at least 2")
    """of every sample in the contrast"""
    contrasted: int | None = limited(None, "0 or more")
    """stored samples in the contrast beside the batch; as many as a batch has if None"""
    consistency: float = limited(0.04, "0 or more")
    """weight of the contrast in the heads of the future"""
    temperature: float = limited(5.0, "above 0")
    """of the contrast"""
    margin: float = limited(0.2, "0 or more")
    """between logits of the future and of a sample's own head, and between chances of past and present"""
    margin_weight: float = limited(0.01, "0 or more")
    """weight of what falls short of the margin"""
    gamma: float = limited(0.85, "from 0 to 1")
    """share of the true label's logit that the greatest of the others is scaled down to"""

    def columns(self, classes: int | None) -> tuple[Column, ...]:
        return (*super().columns(classes), Column(REPLAYS, (), torch.uint8))

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        self.starts = [0]  # rows that had been met at the boundaries

    @property
    def sides(self) -> tuple[int, int]:
        """The first row of the present and the first of the future; the present has whole heads."""
        past, met = self.starts[-1], len(self.learner.class_labels)
        heads = max(1, -(-(met - past) // self.width))
        return past, min(self.classes, past + heads * self.width)

    @property
    def width(self) -> int:
        """Rows of a head: two at least, since one says nothing by itself."""
        return max(2, -(-self.classes // self.heads))

    # -- the loss ----------------------------------------------------------------------------------------------

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        past, future = self.sides
        terms = [super().loss(step, logits)]
        if future < self.classes:
            terms.append(self.margin_weight * self._margin_to_future(step, logits, future))
            terms.append(self.consistency * self._contrast(step, future))
        if 0 < past < future:
            terms.append(self.margin_weight * self._margin_to_past(step, logits, past, future))
        return torch.stack(terms).sum()

    def of_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        own = self.learner.run("forward", _rows_between, labels, [0, *self.sides], self.classes)
        return F.cross_entropy(torch.where(own, logits, -math.inf), labels)

    def _margin_to_future(self, step: Step, logits: Tensor, future: int) -> Tensor:
        own = self.learner.run("forward", _rows_between, step.labels, [*self.starts, future], self.classes)
        best = torch.where(own, logits, -math.inf).max(1).values
        return _mean_above_zero(logits[:, future:].max(1).values + self.margin - best)

    def _margin_to_past(self, step: Step, logits: Tensor, past: int, future: int) -> Tensor:
        """Of the samples of the present; only these move."""
        chances = logits[:, :future].softmax(1)
        short = chances[:, :past].max(1).values.detach() + self.margin - chances[:, past:].max(1).values
        return _mean_above_zero(torch.where(step.labels >= past, short, 0.0))

    def _contrast(self, step: Step, future: int) -> Tensor:
        """Of augmented views of the batch and of stored samples, in every head of the future."""
        memory, width = self.learner.memory, self.width
        samples, labels = step.samples, step.labels
        count = min(len(memory), self.learner.batch_size if self.contrasted is None else self.contrasted)
        if count:
            slots = self.learner.generator("technique").choice(len(memory), count, replace=False)
            drawn = memory.gather(slots)
            samples, labels = joined([samples, drawn.samples]), torch.cat([labels, drawn.labels.to(labels.device)])
        views = self.learner.inputs_of(joined([samples] * self.views), augment=True)
        outputs = self.learner.network.forward_also(views)
        pairs = self.learner.run("forward", _pairs, labels.repeat(self.views))
        heads = [outputs[:, first : first + width] for first in range(future, self.classes, width)]
        return torch.stack([supervised_contrast(head, *pairs, self.temperature) for head in heads]).mean()

    # -- the stored logits -------------------------------------------------------------------------------------

    def after_step(self, step: Step, logits: Tensor) -> None:
        super().after_step(step, logits)
        memory, past = self.learner.memory, self.starts[-1]
        labels, new = (given[step.new :].to(memory.device) for given in (step.labels, logits.float()))
        old = (labels < past).nonzero()[:, 0]
        if len(old) == 0 or past == self.classes:
            return
        replays = (step.columns[REPLAYS][old].int() + 1).clamp(max=_MOST_REPLAYS)
        memory.write(REPLAYS, step.slots[old.numpy(force=True)], replays.byte())
        luck = torch.from_numpy(self.learner.generator("technique").random(len(old))).to(replays.device)
        chosen = old[luck * replays < 1]
        if len(chosen):
            slots = step.slots[chosen.numpy(force=True)]
            self._transplant(slots, memory.read(LOGITS, slots), new[chosen], labels[chosen], past)

    def end_task(self) -> None:
        """What the memory holds of the past is renewed; what was the present becomes the past, if two rows or more are
        on either side: labels could not be told apart among fewer."""
        memory, past, met = self.learner.memory, self.starts[-1], len(self.learner.class_labels)
        if met > max(past, 1) and self.classes - met != 1:
            self.starts.append(met)
        memory.write(REPLAYS, np.arange(len(memory)), torch.zeros(len(memory), dtype=torch.uint8))
        old = np.flatnonzero(memory.labels < past)
        if old.size and past < self.classes:
            held = memory.gather(old)
            new = self.learner.answers("retrieval", held.samples).to(memory.device)
            self._transplant(old, held.columns[LOGITS], new, held.labels, past)

    def stored(self, slot: int, place: int | None) -> None:
        super().stored(slot, place)
        self.learner.memory.write(REPLAYS, np.array([slot]), torch.zeros(1, dtype=torch.uint8))

    def keep(self, slots: Slots, logits: Tensor) -> None:
        """Of samples of the present, those of the past are scaled down."""
        super().keep(slots, logits)
        memory, past = self.learner.memory, self.starts[-1]
        present = slots[memory.labels[slots] >= past]
        if past and present.size:
            rows, labels = memory.read(LOGITS, present), torch.from_numpy(memory.labels[present].astype(np.int64))
            truth = rows.gather(1, labels[:, None].to(rows.device))
            rows[:, :past] = self.learner.run("backward", below, rows[:, :past], truth, self.gamma)
            memory.write(LOGITS, present, rows)

    def _transplant(self, slots: Slots, stored: Tensor, new: Tensor, labels: Tensor, first: int) -> None:
        """Rows from `first` on are as the model says now; a sample that has no logits gets none."""
        truth = stored.gather(1, labels[:, None])
        fresh = self.learner.run("backward", below, new[:, first:], truth, self.gamma)
        stored = torch.cat([stored[:, :first], torch.where(truth.isnan(), math.nan, fresh)], 1)
        self.learner.memory.write(LOGITS, slots, stored)


def below(logits: Tensor, truth: Tensor, gamma: float) -> Tensor:
    """Where the greatest of these logits exceeds that of the true label, all are scaled down so that it is `gamma` of
    it; where that is not positive there is nothing to scale to, and all are moved down to it."""
    greatest = logits.max(1, keepdim=True).values
    lower = torch.where(truth > 0, logits * (gamma * truth / greatest), logits - (greatest - truth))
    return torch.where(greatest > truth, lower, logits)


def supervised_contrast(features: Tensor, itself: Tensor, alike: Tensor, temperature: float) -> Tensor:
    """Views of samples of one class (`alike`) are to be nearer to each other, by angle, than to the rest."""
    unit = F.normalize(features, dim=1)
    nearness = torch.where(itself, -math.inf, unit @ unit.T / temperature).log_softmax(1)
    return -(torch.where(alike, nearness, 0.0).sum(1) / alike.sum(1)).mean()


def _pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of views: each with itself, and with the others of its class."""
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return itself, (labels[:, None] == labels) & ~itself


def _rows_between(labels: Tensor, bounds: list[int], rows: int) -> Tensor:
    """For every label the rows that lie between the same two bounds; rows from the last bound on are nobody's."""
    edges = torch.tensor(bounds, device=labels.device)
    of_row, of_label = ((each[:, None] >= edges).sum(1) for each in (torch.arange(rows).to(labels), labels))
    return (of_label[:, None] == of_row) & (of_row < len(bounds))


def _mean_above_zero(short: Tensor) -> Tensor:
    return short.relu().sum() / (short > 0).sum().clamp(min=1)
