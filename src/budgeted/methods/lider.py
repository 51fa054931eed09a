"""LiDER: Lipschitz-driven rehearsal (Bonicelli et al., 2022), a term over any replay method.

Training again and again on few stored samples makes the network steep around them. LiDER holds down, on the replayed
samples, how steep each block is:

    loss = the method's own + target_weight * mean |L_k - target_k| + lipschitz_weight * mean L_k

L_k is the spectral norm of the transmitting matrix of block k: of the channels that go in with those that come out,
averaged over the positions of the map, each position's channels at norm 1. The targets are the mean L_k of the first
steps. The spectral norm is found by power iteration, without a graph; the gradient of u' T v with the singular vectors
held is that of the spectral norm.

    --method lider                     over DER++
    --method lider-er                  over ER, and so over any replay method: lider_over(METHODS["er"])

Cost: the transmitting matrices of the replayed samples, and the gradients of their norms. Bytes: a target per block.
Deviations, ours / paper / published code: docs/methods/lider.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.limits import limited
from budgeted.methods.der import DarkExperienceReplay
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Behind, Method, Step

_SMALL = 1e-7  # against a division by zero where a position has no activation at all


@dataclass
class LipschitzTerm(Behind):
    """Adds the term to the loss of the method behind it (in the order of a class's bases)."""

    kept = ("targets", "averaged")

    target_weight: float = limited(0.3, "0 or more")
    """weight of the distance to the targets"""
    lipschitz_weight: float = limited(0.1, "0 or more")
    """weight of the Lipschitz constants themselves"""
    target_steps: int = limited(100, "at least 1")
    """first steps whose mean constants are the targets"""
    power_iterations: int = limited(10, "at least 1")
    """for the spectral norms"""

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        names = [block.name for block in learner.network.freezing.chain.blocks][:-1]  # the head has no map behind it
        self.targets = torch.zeros(len(names), device=learner.network.device)
        self.averaged = 0  # steps in the targets
        learner.network.note_features(names)

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        features = [step.inputs, *self.learner.network.take_features()]
        loss = super().loss(step, logits)
        if len(step.labels) == step.new:
            return loss
        with torch.autocast(self.learner.network.device.type, enabled=False):
            replayed = [feature[step.new :].float() for feature in features]
            return loss + self._term([self._constants(*pair) for pair in itertools.pairwise(replayed)])

    def _constants(self, front: Tensor, latter: Tensor) -> Tensor:
        """Of one block, for every sample; what has no gradient is run beside the graph."""
        vectors = front.ndim == 2 or latter.ndim == 2
        unit = prepared if front.requires_grad else partial(self.learner.run, "backward", prepared)
        incoming, outgoing = together(unit(front, vectors), prepared(latter, vectors))
        left, right = self.learner.run(
            "backward", singular_vectors, incoming.detach(), outgoing.detach(), self.power_iterations
        )
        return spectral_norms(incoming, outgoing, left, right)

    def _term(self, constants: Sequence[Tensor]) -> Tensor:
        means = torch.stack([of_block.mean() for of_block in constants])
        term = self.lipschitz_weight * means.mean()
        if self.averaged < self.target_steps:
            self.averaged += 1
            self.targets += (means.detach() - self.targets) / self.averaged
            return term
        away = [(of_block - target).abs().mean() for of_block, target in zip(constants, self.targets, strict=True)]
        return term + self.target_weight * torch.stack(away).mean()


def prepared(feature: Tensor, vectors: bool) -> Tensor:
    """A feature with channels of norm 1 at every position; as vectors, the samples stand in for the positions."""
    return _unit(feature.flatten(1)).T[None] if vectors else _unit(_channels_first(feature))


def together(front: Tensor, latter: Tensor) -> tuple[Tensor, Tensor]:
    """What goes into a block and what comes out, as [samples, channels, positions] with the same positions: the larger
    map is averaged down to the smaller."""
    if front.ndim == latter.ndim == 4 and front.shape[2:] != latter.shape[2:]:
        size = (min(front.shape[2], latter.shape[2]), min(front.shape[3], latter.shape[3]))
        front, latter = (F.adaptive_avg_pool2d(feature, size) for feature in (front, latter))
    front, latter = front.flatten(2), latter.flatten(2)
    if front.shape[2] != latter.shape[2]:
        positions = min(front.shape[2], latter.shape[2])
        front, latter = (F.adaptive_avg_pool1d(feature, positions) for feature in (front, latter))
    return front, latter


@torch.no_grad()
def singular_vectors(front: Tensor, latter: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Of the transmitting matrices, by power iteration."""
    transmitting = torch.bmm(front, latter.transpose(1, 2)) / front.shape[2]
    right = torch.linspace(1, 2, transmitting.shape[2]).to(transmitting)[None, :, None]  # never orthogonal to all
    right = right.expand(len(transmitting), -1, -1)
    for _ in range(iterations):
        left = _unit(torch.bmm(transmitting, right))
        right = _unit(torch.bmm(transmitting.transpose(1, 2), left))
    return left, right


def spectral_norms(front: Tensor, latter: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Of the transmitting matrices, from their singular vectors; differentiable, one for every sample."""
    through = torch.bmm(left.transpose(1, 2), front) * torch.bmm(right.transpose(1, 2), latter)
    return through.sum((1, 2)) / front.shape[2]


def _unit(vectors: Tensor) -> Tensor:
    """Norm 1 over the channels."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / (norms + _SMALL)


def _channels_first(feature: Tensor) -> Tensor:
    """Tokens have their channels last."""
    return feature.transpose(1, 2) if feature.ndim == 3 else feature


def lider_over(method: type[Method], name: str | None = None) -> type[Method]:
    """A replay method with the Lipschitz term added to its loss; its settings are both's."""
    if issubclass(method, LipschitzTerm):
        raise BudgetedError(f"{method.name!r} has the Lipschitz term already: give the method under it")
    if not method.trains:
        raise BudgetedError(f"LiDER is a term of training steps over the stream: {method.name!r} runs none")
    if method.reshapes:
        raise BudgetedError(f"LiDER holds down blocks that stay: {method.name!r} changes the network; choose another")
    own = {"__doc__": f"Lipschitz-driven rehearsal over {method.name}", "name": name or f"lider-{method.name}"}
    found: type[Method] = dataclass(type(f"Lipschitz{method.__name__}", (LipschitzTerm, method), own))
    return found


LIDER = METHODS.register("lider")(lider_over(DarkExperienceReplay, "lider"))
LIDER.__doc__ = "Lipschitz-driven rehearsal over der++; over another method: lider-NAME"
