"""Similarity-aware retrieval (SAR): replay what was used least, counting the uses of similar classes too.

With c_i the forgotten use count of a sample, C_y that of a class and S the class similarity, sample i has
the score c_i + Σ_y S_{y, y_i} C_y, its own uses taken out of the sum, and is drawn without replacement
with probability proportional to exp(-score / T). `SARSettings` holds every other reading.

What a draw costs does not grow with the memory: forgetting is one multiplication (`frequency`), draws go
by proposals from an index (`softmin`, `bands`), and the class term Σ_y S_{y, ·} C_y is kept up to date
from the few rows that change. Only the fold of the scale and rare draws with poor acceptance pass over the
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from budgeted.budget.kept import prefixed, without_prefix
from budgeted.errors import BudgetedError
from budgeted.replay.bands import Bands
from budgeted.replay.column import Column
from budgeted.replay.frequency import FREQUENCY, Frequencies
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.retrieval import RETRIEVALS, ClassBalanced, Facts, Retrieval
from budgeted.replay.sar_settings import SARSettings
from budgeted.replay.similarity import (
    ClassGradientSimilarity,
    OwnClassAlone,
    PairwiseSimilarity,
    Similarity,
    start_at_mean,
)
from budgeted.replay.softmin import Scores, draw_by_pass, draw_by_proposals

Floats = npt.NDArray[np.float64]

_BAND_TEMPERATURES = 4.0
"""Width of a band of frequencies when it is made, in temperatures of score; it halves until the next fold."""


@dataclass(frozen=True)
class Effort:
    """Where to spend the time of a draw. None of this changes the probabilities."""

    pass_below: int = 8192
    """Memories of up to so many samples are drawn from by one pass, which is faster there than an index."""
    direct: int = 8
    """Slots, for each one to draw, that get their clocks without proposals."""
    proposals: int = 32
    """Proposals for each slot to draw, beside one for eight slots of the memory, before a pass is taken."""


@RETRIEVALS.register("sar")
class SimilarityAware(Retrieval):
    """Similarity-aware: the least used first, counting the uses of similar classes.

    SAR over one memory, which is made with `columns` and then told to `watch` this.
    `classes` reserves the bytes of that many classes at once; more are added as they appear. `coordinates`
    is the number of sampled weights, needed only where class gradients are kept.
    """

    kept = ("frequencies", "similarity", "_class_term", "_known", "draws", "_banded_at", "_operations_between")
    columns: tuple[Column, ...] = (FREQUENCY,)

    @classmethod
    def settings_type(cls) -> type:
        return SARSettings

    @classmethod
    def made(cls, settings: Mapping[str, Any], facts: Facts) -> Self:
        chosen = SARSettings(**settings)
        coordinates = facts.count_coordinates() if chosen.similarity == "class_gradient" else None
        return cls(chosen, facts.classes or 0, coordinates)

    def __init__(
        self,
        settings: SARSettings | None = None,
        classes: int = 0,
        coordinates: int | None = None,
        effort: Effort | None = None,
    ) -> None:
        self.settings = settings or SARSettings()
        self.frequencies = Frequencies(classes, self.settings.eviction == "reduce")
        self.similarity: Similarity | None = None
        if self.settings.frequency == "effective":
            self.similarity = self._make_similarity(classes, coordinates)
        self.wants_gradients = self.similarity is not None and self.settings.similarity != "own_class"
        self.draws = 0
        self._class_term: Floats = np.zeros(classes)  # Σ_y S_{y, ·} C_y, relative to the scale as C_y is
        self._known = np.zeros(classes, np.bool_)
        self._memory: Memory | None = None
        self._bands: Bands | None = None
        self._banded_at = 0
        self._warmup = ClassBalanced()
        self._effort = effort or Effort()
        self._operations_between = 0

    def _make_similarity(self, classes: int, coordinates: int | None) -> Similarity:
        if self.settings.similarity == "pairwise":
            return PairwiseSimilarity(classes, self.settings.ema)
        if self.settings.similarity == "own_class":
            return OwnClassAlone(classes)
        if coordinates is None:
            raise BudgetedError("similarity `class_gradient` keeps a gradient per class: give its `coordinates`")
        return ClassGradientSimilarity(classes, self.settings.ema, coordinates, self.settings.class_gradient)

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        if not memory.watched_by(self):
            raise BudgetedError("the retrieval does not hear of the memory's changes: call memory.watch(retrieval)")
        self.operations, self._operations_between = self._operations_between, 0
        count = min(batch_size, len(memory))
        if self.draws < self.settings.warmup:
            slots = self._warmup.draw(memory, count, generator)
            self.operations += self._warmup.price()
        else:
            slots = self._draw(memory, count, generator)
        self.draws += 1
        if self.settings.frequency != "use" and len(memory) > batch_size:
            self.frequencies.decay(batch_size / (self.settings.k * len(memory)))
        self._use(memory, slots)
        if self.frequencies.due:
            self.frequencies.fold(memory)
            self._retake_class_term()
            self._bands = None
            self.operations += 2 * len(memory)
        return slots

    def _draw(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        if count == 0:
            return np.zeros(0, np.int64)
        scores = self.scores(memory)
        self.operations += 4 * memory.counts.size
        stored = memory.host(FREQUENCY.name)
        drawn: dict[int, None] = {}
        by_proposals = len(memory) > self._effort.pass_below
        if by_proposals:
            if self._bands is None:
                steepest = max(float(scores.slope.max()), 1e-300)
                self._bands = Bands.over(memory, stored, _BAND_TEMPERATURES * scores.temperature / steepest)
                self._banded_at = self.draws
                self.operations += 4 * len(memory)
            direct = self._effort.direct * count
            patience = self._effort.proposals * count + len(memory) // 8
            self.operations += draw_by_proposals(scores, self._bands, stored, drawn, count, direct, patience, generator)
        if len(drawn) < count:
            self.operations += draw_by_pass(scores, memory.labels, stored, drawn, count, generator)
            # Frequencies may have left the bands behind. New ones cost a pass too: not after every such draw.
            if by_proposals and (self.draws - self._banded_at) * count >= len(memory) // 4:
                self._bands = None
        return np.fromiter(drawn, np.int64, count)

    def scores(self, memory: Memory) -> Scores:
        """The score as a function of class and stored frequency. No S exceeds 1: no slope is negative."""
        classes, size, how = memory.counts.size, len(memory), self.settings
        own = np.ones(classes)
        term = np.zeros(classes)
        all_by = size if how.normalisation == "all" else 1
        if self.similarity is not None:
            term_by = size if how.normalisation == "class" else 1
            term = self._class_term[:classes] * (self.frequencies.scale / (term_by * all_by))
            if how.self_term == "removed":
                own = own - self.similarity.matrix.diagonal()[:classes] / term_by
        slope = own * (self.frequencies.scale / all_by)
        if how.own == "class_mean":
            mean = self.frequencies.of_class[:classes] / np.maximum(memory.counts, 1)
            term = term - mean * slope
        return Scores(term, slope, how.clamp, how.temperature)

    def probabilities(self, memory: Memory) -> Floats:
        """The chance of every slot to be the next one drawn: a pass over the memory, for inspection."""
        energy = self.scores(memory).energy(memory.labels, memory.host(FREQUENCY.name))
        weight = np.exp(energy.min() - energy)
        return np.asarray(weight / weight.sum())

    def _use(self, memory: Memory, slots: Slots) -> None:
        labels = memory.labels[slots].astype(np.int64)
        before, grown = self.frequencies.use(memory, slots, labels)
        if self.similarity is not None:
            self._class_term += grown @ self.similarity.matrix[labels]
            self.operations += 2 * labels.size * self._class_term.size
        if self._bands is not None:
            self._bands.move(labels, slots, before, memory.host(FREQUENCY.name)[slots])
        self.operations += 4 * labels.size

    def observe(self, values: torch.Tensor, present: torch.Tensor, labels: torch.Tensor) -> None:
        if self.similarity is None or not self.wants_gradients:
            return
        which = labels.cpu().numpy().astype(np.int64)
        self._ensure_classes(int(which.max(initial=-1)) + 1)
        update = self.similarity.update(values, present, which)
        self.operations += self.similarity.operations
        if update is None:
            return
        classes, change = update
        of_class = self.frequencies.of_class
        if change is not None:
            self._class_term += of_class[classes] @ change
            self.operations += 2 * change.size
        self._class_term[classes] = self.similarity.matrix[classes] @ of_class
        self.operations += 2 * classes.size * of_class.size

    def evicting(self, memory: Memory, slot: int) -> None:
        stored = memory.host(FREQUENCY.name)[slot]
        label, leaving = self.frequencies.evict(memory, slot)
        if self._bands is not None:
            self._bands.remove(label, slot, stored)
        if self.similarity is not None and leaving:
            self._class_term -= leaving * self.similarity.matrix[label]
            self._operations_between += 2 * self._class_term.size

    def stored(self, memory: Memory, slot: int) -> None:
        label = int(memory.labels[slot])
        self._ensure_classes(label + 1)
        if not self._known[label]:
            self._meet(label)
        if self._bands is not None:
            self._bands.add(label, slot)

    def moved(self, memory: Memory, old: int, new: int) -> None:
        if self._bands is not None:
            self._bands.rename(int(memory.labels[new]), memory.host(FREQUENCY.name)[new], old, new)

    def adopt(self, memory: Memory) -> None:
        self._memory = memory
        self._ensure_classes(memory.counts.size)
        for label in np.flatnonzero((memory.counts > 0) & ~self._known[: memory.counts.size]):
            self._meet(int(label))
        self.frequencies.recount(memory)
        self._retake_class_term()
        self._bands = None

    def _meet(self, label: int) -> None:
        if self.settings.new_class == "mean" and self.similarity is not None:
            start_at_mean(self.similarity.matrix, label, self._known)
            self._retake_class_term()
        self._known[label] = True

    def _ensure_classes(self, classes: int) -> None:
        missing = classes - self._known.size
        if missing > 0:
            self._known = np.concatenate([self._known, np.zeros(missing, np.bool_)])
            self._class_term = np.concatenate([self._class_term, np.zeros(missing)])
            self.frequencies.ensure_classes(classes)
            if self.similarity is not None:
                self.similarity.ensure_classes(classes)

    def _retake_class_term(self) -> None:
        if self.similarity is not None:
            self._class_term = self.similarity.matrix @ self.frequencies.of_class
            self._operations_between += 2 * self.similarity.matrix.size

    def index_nbytes(self) -> int:
        return 0 if self._bands is None else self._bands.nbytes

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | prefixed("bands", {} if self._bands is None else self._bands.state())

    def load_state(self, state: Mapping[str, torch.Tensor], device: torch.device | str = "cpu") -> None:
        """Continue as saved; the memory is loaded, and watched by this, before."""
        if self._memory is None:
            raise BudgetedError("the retrieval has no memory yet: call memory.watch(retrieval) before loading it")
        super().load_state(state, device)
        bands = without_prefix("bands", state)
        self._bands = Bands.from_state(self._memory, bands) if bands else None
