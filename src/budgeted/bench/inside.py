"""What happens inside a learner over a stream: the freezing criterion by block, the Fisher estimate, class similarity
and use frequencies. No record of a run holds them; here the same learner is asked after every step.

For the estimate (Figure 5) a second one is kept beside it, from 16 times as many samples: four batches of 16 in every
step, instead of one in every fourth. The squared gradient of a batch falls with its size, whatever the information is;
so two larger estimates are kept: of the same quantity, and of one gradient over all 64.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from budgeted import models, streams
from budgeted.errors import BudgetedError
from budgeted.freezing import AdaptivePrefix
from budgeted.learner.learner import Learner
from budgeted.methods import METHODS
from budgeted.replay import SimilarityAware
from budgeted.runs.plan import facts_of

Floats = NDArray[np.float64]
LARGER = ("batches of 16", "batches of 64")


@dataclass(frozen=True)
class InsideSettings:
    """Which learner is looked into, and how finely."""

    method: str = "al-sar"
    dataset: str = "cifar10"
    stream: str = "disjoint"
    model: str = "resnet20"
    samples: int = 5_000
    slots: int = 1_268
    points: int = 100
    """means over the stream that are kept"""
    larger_sample: bool = False
    """whether the Fisher traces are estimated from 16 times as many samples, too; five times the work"""
    seed: int = 1


def look_inside(settings: InsideSettings, data_dir: Path | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    data = streams.load(settings.dataset, data_dir, test=False)
    stream = streams.stream_of(data, settings.stream, settings.seed, limit=settings.samples)
    model = models.build(settings.model, classes=1, input_shape=data.info.input_shape, seed=settings.seed)
    learner = Learner(
        model, METHODS[settings.method], facts_of(data.info, len(stream)), slots=settings.slots, iterations=1.0,
        seed=settings.seed,
    )  # fmt: skip
    policy = learner.network.freezing.policy
    if not isinstance(policy, AdaptivePrefix):
        raise BudgetedError(f"{settings.method!r} does not freeze adaptively: look into al or al-sar")
    names = [block.name for block in learner.network.freezing.chain.blocks]
    criterion = _Means(len(stream), settings.points, len(names) - 1)
    beside = _Larger(learner, policy, settings.seed) if settings.larger_sample else None
    fisher: dict[str, list[list[float]]] = {name: [] for name in ("own", *LARGER)}
    at: list[int] = []
    every = max(1, len(stream) // settings.points)
    for position in range(len(stream)):
        index = stream[position]
        before = learner.steps
        learner.learn(torch.from_numpy(np.ascontiguousarray(data.train_images[index])), int(data.train_labels[index]))
        if learner.steps == before:
            continue
        if policy.last is not None:
            criterion.add(position, np.asarray(policy.last.bfc[1:]))
        if beside is not None:
            beside.look()
        if (position + 1) % every == 0:
            at.append(position + 1)
            fisher["own"].append([policy.fisher[name] for name in names])
            for kind in LARGER if beside is not None else ():
                fisher[kind].append([beside.fisher[kind].get(name, 0.0) for name in names])  # type: ignore[union-attr]
    return {
        "settings": asdict(settings),
        "blocks": names,
        "boundaries": [int(boundary) for boundary in stream.boundaries()],
        "samples": criterion.places(),
        "bfc": criterion.means(),
        "positive": criterion.shares(),
        "fisher_at": at,
        "fisher": {kind: found for kind, found in fisher.items() if found},
        **_retrieval(learner, data.class_names),
    }


def _retrieval(learner: Learner, names: Any) -> dict[str, Any]:
    """What similarity-aware retrieval has come to believe, by class in the order in which they came."""
    retrieval = learner.retrieval
    if not isinstance(retrieval, SimilarityAware) or retrieval.similarity is None:
        return {}
    count = len(learner.class_labels)
    used = retrieval.frequencies.of_samples(learner.memory)
    return {
        "classes": [str(names[label]) if len(names) > label else str(label) for label in learner.class_labels],
        "similarity": [
            [round(float(value), 4) for value in row[:count]] for row in retrieval.similarity.matrix[:count]
        ],
        "use_frequency": [round(float(value), 4) for value in used],
        "labels": [int(label) for label in learner.memory.labels],
    }


class _Means:
    """Means of the criterion over equal stretches of the stream."""

    def __init__(self, samples: int, points: int, blocks: int) -> None:
        self._width = max(1, samples // points)
        self._sums = np.zeros((-(-samples // self._width), blocks))
        self._positive = np.zeros_like(self._sums)
        self._counts = np.zeros(len(self._sums))

    def add(self, position: int, bfc: Floats) -> None:
        if not np.isfinite(bfc).all():  # before there is an average, nothing may rest
            return
        row = position // self._width
        self._sums[row] += bfc
        self._positive[row] += bfc > 0
        self._counts[row] += 1

    def places(self) -> list[int]:
        return [int((row + 0.5) * self._width) for row in np.flatnonzero(self._counts)]

    def means(self) -> list[list[float]]:
        return self._over(self._sums)

    def shares(self) -> list[list[float]]:
        """Of the steps in which freezing up to a block would have gained."""
        return self._over(self._positive)

    def _over(self, sums: Floats) -> list[list[float]]:
        there = self._counts > 0
        found: list[list[float]] = (sums[there] / self._counts[there, None]).tolist()
        return found


class _Larger:
    """Fisher traces from 64 samples of every step, averaged as the policy averages its own."""

    def __init__(self, learner: Learner, policy: AdaptivePrefix, seed: int) -> None:
        self._learner, self._policy = learner, policy
        self._random = np.random.default_rng([seed, 16])
        self._waiting: dict[str, list[Floats]] = {kind: [] for kind in LARGER}
        self.fisher: dict[str, dict[str, float]] = {kind: {} for kind in LARGER}

    def look(self) -> None:
        gradients = [self._gradients() for _ in range(4)]
        mean = {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}
        self._waiting[LARGER[0]].append(np.mean([self._squares(each) for each in gradients], axis=0))
        self._waiting[LARGER[1]].append(self._squares(mean))
        if len(self._waiting[LARGER[0]]) < self._policy.refresh_every:
            return
        names = self._learner.network.freezing.chain.names
        for kind, found in self._waiting.items():
            kept = self.fisher[kind]
            for name, new in zip(names, np.mean(found, axis=0), strict=True):
                kept[name] = (1 - self._policy.ema) * kept.get(name, 0.0) + self._policy.ema * float(new)
            found.clear()

    def _gradients(self) -> dict[str, torch.Tensor]:
        memory, problem = self._learner.memory, self._learner.problem
        slots = self._random.choice(len(memory), min(self._learner.batch_size, len(memory)), replace=False)
        drawn = memory.gather(slots)
        inputs = problem.inputs(drawn.samples, self._random)
        labels = drawn.labels
        found = self._learner.network.gradients("fisher", inputs, lambda out: problem.loss(out, inputs, labels))
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def _squares(self, gradients: dict[str, torch.Tensor]) -> Floats:
        chain = self._learner.network.freezing.chain
        sums = [
            sum(float(gradients[name].square().sum()) for name in chain.owned(block) if name in gradients)
            for block in range(len(chain))
        ]
        return np.asarray(sums, dtype=np.float64)
