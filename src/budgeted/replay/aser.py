"""ASER: retrieval and memory update by Shapley values (Shim et al., 2021).

Retrieval wants samples near the border between what is stored and what just arrived: of value for classifying other
stored samples (cooperative), of none, or of harm, for classifying the arrived ones (adversarial):

    score = mean over stored samples of the value - mean over arrived samples of the value          ASER_mu
    score = max  over stored samples of the value - min  over arrived samples of the value          ASER

The memory update keeps samples of value for classifying stored ones: some stored samples and the arrived ones compete,
and as many as were stored stay. Values are those of `budgeted.replay.shapley`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from budgeted.errors import UnknownName
from budgeted.limits import limited, refuse_outside_limits
from budgeted.replay.incoming import MeetsTheStream, uniform_beside
from budgeted.replay.lent import Lent
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.retrieval import RETRIEVALS, Facts
from budgeted.replay.selection import SELECTIONS, Reservoir
from budgeted.replay.shapley import shapley_values


@dataclass(frozen=True)
class ASERSettings:
    """How many samples ASER looks at, and how it scores them."""

    neighbours: int = limited(3, "at least 1")
    """K of the nearest-neighbour classifier"""
    per_class: int = limited(9, "at least 1")
    """stored samples of each class in a candidate set, and as many in an evaluation set"""
    candidates: int = limited(50, "at least 1")
    """most samples of such a set: with many classes fewer of each, one at least"""
    score: Literal["mean", "extreme"] = "mean"
    """means of the values (ASER_mu), or the largest cooperative and the smallest adversarial one (ASER)"""

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "retrieval.")
        if self.score not in ("mean", "extreme"):
            raise UnknownName("score of aser", self.score, ("mean", "extreme"))

    def of_each(self, memory: Memory) -> int:
        """Samples of each class in a set; two sets fit into the memory."""
        classes = max(1, int(np.count_nonzero(memory.counts)))
        return max(1, min(self.per_class, self.candidates // classes, len(memory) // (2 * classes)))


@RETRIEVALS.register("aser")
class AdversarialShapley(MeetsTheStream):
    """Those of value for what is stored and of none for what just arrived, by Shapley values.

    Drawn are the candidates with the highest score; uniformly until the memory is full.
    """

    of_classes = True

    @classmethod
    def settings_type(cls) -> type:
        return ASERSettings

    @classmethod
    def made(cls, settings: Mapping[str, Any], facts: Facts) -> Self:
        return cls(ASERSettings(**settings), cls.standing_in(facts))

    def __init__(self, settings: ASERSettings | None = None, standing_in: int = 0) -> None:
        super().__init__(standing_in)
        self.settings = settings or ASERSettings()

    def choose(
        self, memory: Memory, count: int, generator: np.random.Generator, incoming: tuple[Tensor, Tensor], taken: Slots
    ) -> Slots:
        if self._draws_uniformly(memory, count, len(incoming[1]), len(taken)):
            return uniform_beside(memory, count, taken, generator)
        of_each, enough = self._of_each(memory, count)
        candidates = of_every_class(memory, enough, taken, generator)
        others = of_every_class(memory, of_each, np.concatenate([taken, candidates]), generator)
        best = candidates[np.argsort(-self._scores(memory, candidates, others, incoming), kind="stable")[:count]]
        self.operations += len(candidates)
        missing = count - len(best)  # small classes have given all they have
        return np.concatenate([best, uniform_beside(memory, missing, np.concatenate([taken, best]), generator)])

    def _scores(
        self, memory: Memory, candidates: Slots, others: Slots, incoming: tuple[Tensor, Tensor]
    ) -> npt.NDArray[np.float32]:
        stored = memory.gather(np.concatenate([candidates, others]))
        network = self.learner.network
        features = network.features("retrieval", self.learner.inputs_of(torch.cat([stored.samples, incoming[0]])))
        labels = torch.cat([stored.labels, incoming[1].to(stored.labels.device)]).to(features.device)
        players, asked, extreme = len(candidates), len(others), self.settings.score == "extreme"
        values = network.run(
            "retrieval", shapley_values, features[:players], labels[:players], features[players:], labels[players:],
            self.settings.neighbours,
        )  # fmt: skip
        scores = network.run("retrieval", _scores, values, asked, extreme)
        found: npt.NDArray[np.float32] = scores.cpu().numpy()
        return found

    @staticmethod
    def _draws_uniformly(memory: Memory, count: int, arrived: int, taken: int) -> bool:
        """While the memory fills, and where there is nothing to choose, or nothing to choose by."""
        filling = memory.capacity is not None and not memory.full
        return filling or arrived == 0 or count == 0 or count + taken == len(memory)

    def _of_each(self, memory: Memory, count: int) -> tuple[int, int]:
        """Samples of each class in the evaluation set, and in the candidate set, which has `count` at least."""
        of_each = self.settings.of_each(memory)
        return of_each, max(of_each, -(-count // int(np.count_nonzero(memory.counts))))


@SELECTIONS.register("aser")
class ShapleySelection(Reservoir):
    """Fills the memory; then those of stored and arrived samples stay that are of value for classifying stored ones.

    Where the compute that is left does not pay for the values, arrived samples enter as in a reservoir.
    """

    of_classes = True

    def __init__(self, settings: ASERSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or ASERSettings()
        self._decided: list[int | None] = []

    @classmethod
    def settings_type(cls) -> type:
        return ASERSettings

    @classmethod
    def made(cls, settings: Mapping[str, Any]) -> Self:
        return cls(ASERSettings(**settings))

    def consider(self, learner: Lent, samples: Tensor, labels: Tensor) -> None:
        """Decide on these samples, which are about to be offered to `select` one after the other."""
        memory, generator = learner.memory, learner.generator("selection")
        free = len(samples) if memory.capacity is None else max(0, memory.capacity - len(memory))
        self._decided = []
        samples, labels = samples[free:], labels[free:]
        if len(samples) == 0:
            return
        of_each = self.settings.of_each(memory)
        asked = of_every_class(memory, of_each, np.zeros(0, np.int64), generator)
        rare = self._rare(memory, labels, len(learner.class_labels), generator)
        beside = min(of_each * int(np.count_nonzero(memory.counts)), len(memory) - len(asked))
        passed = len(asked) + beside + len(samples)
        if beside == 0 or not learner.affords(learner.network.price_of(passed)):
            return
        players = uniform_beside(memory, beside, asked, generator)
        stored = memory.gather(np.concatenate([asked, players]))
        features = learner.network.features("retrieval", learner.inputs_of(torch.cat([stored.samples, samples])))
        known = torch.cat([stored.labels, labels.to(stored.labels.device)]).to(features.device)
        evaluation = torch.cat([torch.arange(len(asked)), len(stored.labels) + rare])
        values = learner.network.run(
            "retrieval", _worth, features[len(asked) :], known[len(asked) :], features[evaluation], known[evaluation],
            self.settings.neighbours,
        )  # fmt: skip
        self._decided = [*[None] * free, *decisions(values.cpu().numpy(), players)]

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        if not self._decided or not memory.full:
            self._decided = self._decided[1:]
            return super().select(memory, label, generator)
        self.seen += 1
        slot, *self._decided = self._decided
        return slot if slot is None or slot < len(memory) else None

    def _rare(self, memory: Memory, labels: Tensor, classes: int, generator: np.random.Generator) -> Tensor:
        """Places of the arrived samples of classes of which little is stored: they are classified as well.

        Little is less than a share of the memory that is drawn anew each time, up to an even one.
        """
        threshold = generator.random() / max(1, classes) * len(memory)
        held = [int(memory.counts[label]) if label < memory.counts.size else 0 for label in labels.tolist()]
        return torch.tensor([place for place, count in enumerate(held) if count < threshold], dtype=torch.int64)


def decisions(values: npt.NDArray[np.float32], players: Slots) -> list[int | None]:
    """The slot that each arrived sample takes, or None: values of the stored `players` first, then of the arrived.

    As many as are stored stay, the most valuable; those who leave make room in the order of their slots.
    """
    stored = len(players)
    staying = np.argsort(-values, kind="stable")[:stored]
    leaving = iter(players[np.setdiff1d(np.arange(stored), staying)].tolist())
    enters = set(staying[staying >= stored].tolist())
    return [int(next(leaving)) if place in enters else None for place in range(stored, len(values))]


def of_every_class(memory: Memory, count: int, taken: Iterable[int], generator: np.random.Generator) -> Slots:
    """Up to `count` slots of every class, uniformly among those not taken."""
    excluded = np.fromiter(taken, np.int64)
    chosen = [np.zeros(0, np.int64)]
    for label in np.flatnonzero(memory.counts).tolist():
        members = np.setdiff1d(memory.membership.members(label), excluded)
        chosen.append(generator.choice(members, min(count, len(members)), replace=False).astype(np.int64))
    return np.concatenate(chosen)


def _scores(values: Tensor, asked: int, extreme: bool) -> Tensor:
    """Of use for the first samples, which are stored, and of none for the others, which arrived."""
    cooperative, adversarial = values[:asked], values[asked:]
    if asked == 0:  # every stored sample is a candidate
        cooperative = torch.zeros_like(values[:1])
    return cooperative.amax(0) - adversarial.amin(0) if extreme else cooperative.mean(0) - adversarial.mean(0)


def _worth(players: Tensor, labels: Tensor, asked: Tensor, asked_labels: Tensor, neighbours: int) -> Tensor:
    """What each player is worth for all that are asked."""
    return shapley_values(players, labels, asked, asked_labels, neighbours).sum(0)
