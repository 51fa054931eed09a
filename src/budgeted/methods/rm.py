"""RM (Bang et al., "Rainbow Memory", CVPR 2021): a memory of samples that range from certain to uncertain.

A sample's uncertainty is how little its augmented views agree: with S_c the number of views, of A, that the model gives
class c, u = 1 - max_c S_c / A. Of the candidates of a class, sorted by u, those at equal intervals stay, so that the
easy, the typical and the hard are all kept.

As its authors have it, samples are scored once per task, when it ends; never in the first, and not while memory and
task fit into the slots. In between the memory is balanced greedily, which costs nothing. There is no place for a task's
samples beside the memory, so the candidates are what the slots hold: all but a share `spare` of them stay, the quotas
as equal over the classes as what they hold allows, and newcomers fill the emptied slots. On a stream without tasks one
ends after every fifth.

Deviations (ours / authors' code); the published code has this choice and never calls it:
- after the first task: what greedy balancing kept / the same number of each class, at random;
- candidates: what the slots hold / the memory and all samples of the task;
- interval: n / k, as a fraction / n / k rounded down, so that the most uncertain are never reached;
- views: 12 of the training augmentation / 12 given ones with cutout and colour, or 12 draws of RandAugment;
- batches: half stream, half memory / the same; no CutMix and AutoAugment (the authors' RM without them);
- passes over the memory after a task: none / 256 epochs.

Cost: A forwards of every stored sample of a class above its quota, at each scoring, charged as `retrieval`. Bytes: a
counter beside the slots, of which a part is empty after a scoring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from budgeted.limits import limited
from budgeted.methods.method import METHODS, Method, PartName
from budgeted.replay.membership import Slots
from budgeted.replay.selection import balanced_counts


@METHODS.register("rm")
@dataclass
class RainbowMemory(Method):
    """ER with a memory of samples that range from certain to uncertain, by the votes of augmented views"""

    kept = ("_ended",)
    own: ClassVar[frozenset[PartName]] = frozenset({"selection"})
    boundaries: ClassVar[bool] = True
    of_classes: ClassVar[bool] = True
    stream_share: float = 0.5

    views: int = limited(12, "at least 2")
    """A: augmented views of a sample that vote"""
    spare: float = limited(0.25, "between 0 and 1")
    """share of the slots that a choice empties"""
    _ended: int = field(default=0, init=False)  # tasks

    def end_task(self) -> None:
        """Choose what stays; where that cannot be paid, greedy balancing goes on."""
        memory, first = self.learner.memory, self._ended == 0
        self._ended += 1
        if first or not memory.full or memory.capacity is None:
            return
        quotas = balanced_counts(memory.counts, self._staying(memory.capacity))
        crowded = np.flatnonzero(memory.counts > quotas)
        candidates = np.flatnonzero(np.isin(memory.labels, crowded))
        votes = self.learner.network.price_of(self.views * candidates.size)
        if not candidates.size or not self.learner.affords(votes):
            return  # one slot has nothing to give
        uncertainty = self.uncertainty(candidates)
        leaving = []
        for label in crowded.tolist():
            own = memory.labels[candidates] == label
            leaving.append(thinned(candidates[own], uncertainty[own], int(quotas[label])))
        memory.evict(np.concatenate(leaving).tolist())

    def uncertainty(self, slots: Slots) -> npt.NDArray[np.float64]:
        """u of the samples in `slots`: one minus the share of the views that the most voted class gets."""
        samples = self.learner.memory.gather(slots).samples
        votes = torch.zeros(len(slots), len(self.learner.class_labels))
        for _ in range(self.views):
            answers = self.learner.answers("retrieval", samples, augment=True)[:, : votes.shape[1]]
            self.learner.run("retrieval", _vote, votes, answers)
        found: npt.NDArray[np.float64] = self.learner.run("retrieval", _disagreement, votes, self.views).numpy()
        return found

    def _staying(self, capacity: int) -> int:
        return max(1, min(capacity - 1, round(capacity * (1 - self.spare))))


def thinned(members: Slots, uncertainty: npt.NDArray[np.float64], quota: int) -> Slots:
    """The members of a class that leave: all but `quota` at equal intervals of their order by uncertainty."""
    order = members[np.argsort(uncertainty, kind="stable")]
    staying = np.arange(quota) * members.size // max(1, quota)
    return np.delete(order, staying)


def _vote(votes: Tensor, answers: Tensor) -> None:
    """One view of every sample votes for a class."""
    votes[torch.arange(len(votes)), answers.argmax(1)] += 1


def _disagreement(votes: Tensor, views: int) -> Tensor:
    """One minus the share of the most voted class."""
    return 1 - votes.double().amax(1) / views
