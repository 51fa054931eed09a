"""REMIND (Hayes et al., "REMIND Your Neural Network to Prevent Forgetting", ECCV 2020): replay of compressed features.

Until a share `base_share` of the stream has arrived it is experience replay. Then the front of the network rests for
good, all but the head and the last `trained_blocks` blocks. A product quantiser is trained on the front's features of
what is stored: a byte for each of 32 parts of a position's channels. From there on a sample is its code. One that
arrives goes through the front once and is quantised; the memory holds codes; a step restores features from codes and
runs the rest of the network on them, forward and backward, and nothing else.

Features are varied instead of pixels: every map is cropped at random and resized, and the replayed ones are mixed in
pairs, lambda drawn from Beta(mixup, mixup), with the labels of both in the loss. Images that are predicted go through
front and quantiser too, so that the rest reads what it is trained on.

Where the length of the stream is not known, the first task is the base.

Deviations (ours / paper and its authors' code / published code), all of them in docs/methods/remind.md:
- base: ER on 60 % of the stream, within the budget / offline, on 10 % of the classes / ER on 60 %;
- rest: the last two blocks / the last one of ResNet-18 / the last two;
- mixed: the replayed samples with one another / with as many others, drawn besides / nothing, nor cropped;
- quantiser: k-means of ours, charged / faiss / faiss, not charged;
- bytes: codes, codebooks / the same / codes.

Cost: at the end of the base the front's forward of all that is stored, and the quantiser's training; then a forward of
the front for every sample that arrives, and steps of the rest alone. Bytes: codes in the memory, and the codebooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from budgeted.budget import BudgetSpent
from budgeted.errors import BudgetedError
from budgeted.limits import limited
from budgeted.methods.crops import boxes, resized, weights_of
from budgeted.methods.method import METHODS, Method, Step
from budgeted.network.front import FrontAndRest
from budgeted.network.quantiser import SIZE, codes_of, drawn_from, improved, restored, vectors_of
from budgeted.replay import Column

_ITERATIONS = 25  # of k-means, and at most so many vectors for each entry of a codebook: faiss's own
_VECTORS = 256


@METHODS.register("remind")
@dataclass
class REMIND(Method):
    """ER for a part of the stream; then its front rests, and quantised features are replayed to the rest"""

    kept = ("_over",)
    boundaries: ClassVar[bool] = True
    reshapes: ClassVar[bool] = True
    recodes: ClassVar[bool] = True
    rests: ClassVar[str] = "the front, once its base is over"
    stream_share: float = 0.5

    base_share: float = limited(0.6, "from 0 to 1")
    """share of the stream after which the front rests (1: never); the first task, where its length is not known"""
    trained_blocks: int = limited(2, "0 or more")
    """blocks below the head that go on being trained; the first block of the network never does"""
    codebooks: int = limited(32, "at least 1")
    """bytes of a position's code: as many as divide the channels, and no more than so many"""
    smallest_crop: float = limited(2 / 7, "between 0 and 1")
    """smallest share of a feature map that a crop keeps; the largest is all of it"""
    mixup: float = limited(0.1, "0 or more")
    """lambda is drawn from Beta(mixup, mixup); 0 mixes nothing"""
    _over: bool = field(default=False, init=False)  # is the base behind?
    mix = (1.0, np.zeros(0, np.int64))  # lambda of the step under way, and whom each replayed one is mixed with

    def model(self, model: nn.Module, example: Any) -> nn.Module:
        self.split = FrontAndRest(model, example, self.trained_blocks, self.codebooks)
        return self.split

    # -- the end of the base -----------------------------------------------------------------------------------

    def admits(self, sample: Tensor, row: int) -> Tensor | None:
        """The moment at which the base may be over; afterwards, what cannot be paid for cannot be stored."""
        learner, length = self.learner, self.learner.problem.samples
        if not self._over and length is not None and learner.arrived > self.base_share * length:
            self.end_base()
        if not self._over or learner.affords(learner.network.price_of_part(self.split.front, sample[None])):
            return sample
        learner.end_training()
        return None

    def end_task(self) -> None:
        if not self._over and self.learner.problem.samples is None:
            self.end_base()

    def end_base(self) -> None:
        """From here on samples are codes, if what that takes can be paid."""
        if self.learner.spent_up or not len(self.learner.memory):
            return
        self._over = True
        try:
            self.learner.hold(Codes(self), self._learn_codes)
        except BudgetedError as error:
            self._over = False
            if not isinstance(error, BudgetSpent):
                raise
            self.learner.end_training()
        else:
            self._follow()

    def _learn_codes(self, samples: Tensor) -> Tensor:
        """Codebooks for the features of what is stored, and its codes."""
        features = self.features(samples)
        vectors, quantiser = vectors_of(features), self.split.quantiser
        draws = self.learner.generator("technique")
        vectors = vectors[torch.from_numpy(draws.permutation(len(vectors))[: SIZE * _VECTORS])]
        centroids = drawn_from(vectors, quantiser.centroids, draws)
        for _ in range(_ITERATIONS):
            centroids = self.learner.run("forward", improved, vectors, centroids)
        quantiser.centroids.copy_(centroids)
        return self.codes(features)

    def _follow(self) -> None:
        self.split.go_over()
        self.learner.network.starts_from(self.split.example)

    def load_state(self, state: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        super().load_state(state, device)
        if self._over:
            codes = Codes(self)
            self.learner.hold(codes, codes.held)
            self._follow()

    # -- samples are codes -------------------------------------------------------------------------------------

    def features(self, samples: Tensor) -> Tensor:
        inputs: Any = self.learner.problem.inputs(samples)
        return self.learner.network.outputs_of_part("forward", self.split.front, inputs)

    def codes(self, features: Tensor) -> Tensor:
        return self.learner.run("forward", codes_of, features, self.split.quantiser.centroids).cpu()

    # -- a training step ---------------------------------------------------------------------------------------

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        """Of a mixed sample: lambda of its own label's, the rest of the other's."""
        share, others = self.mix
        if not self._over or share == 1 or len(others) != len(step.labels) - step.new:
            return super().loss(step, logits)
        loss, new, count = self.learner.problem.loss, step.new, len(step.labels)
        replayed, labels = logits[new:], step.labels[new:]
        found = share * loss(replayed, step.inputs, labels)
        found = found + (1 - share) * loss(replayed, step.inputs, labels[torch.from_numpy(others)])
        if not new:
            return found
        return (new * loss(logits[:new], step.inputs, step.labels[:new]) + (count - new) * found) / count


class Codes:
    """Samples as codes of what the front makes of them."""

    def __init__(self, method: REMIND) -> None:
        self.method = method

    def columns(self) -> tuple[Column, ...]:
        model = self.method.split
        return (Column("codes", (*model.shape[1:], model.quantiser.parts), torch.uint8),)

    def held(self, sample: Tensor) -> Tensor:
        return self.method.codes(self.method.features(sample[None]))[0]

    def inputs(self, samples: Any, generator: np.random.Generator | None, new: int) -> Any:
        """Features from codes; in training cropped, and the replayed ones mixed."""
        method, run = self.method, self.method.learner.run
        centroids = method.split.quantiser.centroids
        features = run("forward", restored, samples.to(centroids.device), centroids)
        if generator is None:
            return features
        if features.ndim == 4:
            found = boxes(len(features), features.shape[2:], method.smallest_crop, generator)
            down, across = (weights.to(features.device) for weights in weights_of(found, features.shape[2:]))
            features = run("forward", resized, features, down, across)
        method.mix = (1.0, np.arange(len(features) - new))
        if method.mixup and new < len(features):
            method.mix = float(generator.beta(method.mixup, method.mixup)), generator.permutation(len(features) - new)
            features = run("forward", mixed, features, new, method.mix[0], torch.from_numpy(method.mix[1]))
        return features


def mixed(features: Tensor, new: int, share: float, others: Tensor) -> Tensor:
    """Each of the replayed ones with another of them; those of the stream as they are."""
    replayed = features[new:]
    return torch.cat([features[:new], share * replayed + (1 - share) * replayed[others]])
