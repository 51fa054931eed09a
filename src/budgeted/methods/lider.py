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
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from budgeted.budget import Cost, trace
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.methods.course import Costs, Course, together
from budgeted.methods.der import DarkExperienceReplay
from budgeted.methods.method import METHODS, Method, Step
from budgeted.replay.view import LearnerView

_SMALL = 1e-7  # against a division by zero where a position has no activation at all


if TYPE_CHECKING:
    _Behind = Method
else:  # no fields of a method's own: those of the class that it stands before are kept
    _Behind = object


@dataclass
class LipschitzTerm(_Behind):
    """Adds the term to the loss of the method behind it (in the order of a class's bases)."""

    kept = ("targets", "averaged")

    target_weight: float = 0.3
    """weight of the distance to the targets"""
    lipschitz_weight: float = 0.1
    """weight of the Lipschitz constants themselves"""
    target_steps: int = 100
    """first steps whose mean constants are the targets"""
    power_iterations: int = 10
    """for the spectral norms"""

    def __post_init__(self) -> None:
        behind = getattr(super(), "__post_init__", None)
        if behind is not None:
            behind()
        for name in ("target_weight", "lipschitz_weight"):
            weight = getattr(self, name)
            if not (math.isfinite(weight) and weight >= 0):
                raise BudgetedError(f"method.{name} must be a number of 0 or more, got {weight}")
        for name in ("target_steps", "power_iterations"):
            if getattr(self, name) < 1:
                raise BudgetedError(f"method.{name} must be at least 1, got {getattr(self, name)}")

    def begin(self, learner: LearnerView) -> None:
        super().begin(learner)
        names = learner.block_names()[:-1]  # the head has no map behind it
        self.targets = torch.zeros(len(names), device=learner.device)
        self.averaged = 0  # steps in the targets
        self._features: dict[str, Tensor] = {}
        self._work: list[Work] = []  # of the step under way, block by block
        self._shapes: dict[str, tuple[int, ...]] = {}  # of one sample behind every block, as a trace finds them
        self._most: dict[int, int] = {}  # operations by the number of replayed samples
        self._blocks = [learner.model.get_submodule(name) for name in names]
        self._handles = [self._listen(name, block) for name, block in zip(names, self._blocks, strict=True)]

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        features = [step.images, *self._features.values()]
        self._features = {}
        loss = super().loss(step, logits)
        replayed = len(step.labels) - step.new
        self._work.clear()
        if replayed == 0:
            return loss
        with torch.autocast(step.images.device.type, enabled=False):
            constants = list(self._constants([feature[step.new :].float() for feature in features]))
            term = self._term(constants)
            self.learner.leave_out(term)  # it reads features from inside the model; `operations` prices it
            return loss + term

    def operations(self, step: Step) -> int:
        operations, reached = super().operations(step), False
        for block, work in zip(self._blocks, self._work, strict=False):
            before = reached  # below the first block that is trained no gradient is run
            reached |= any(parameter.grad is not None for parameter in block.parameters())
            operations += work.forward + before * work.backward_front + reached * work.backward_latter
        return operations

    def most(self, new: int, batch: int) -> Cost:
        return super().most(new, batch) + Cost(0, self._most_operations(batch - new))

    def each_step(self, course: Course) -> Costs:
        own = Cost(0, self._most_operations(course.batch - course.new))
        return together(super().each_step(course), {"backward": own})

    def close(self) -> None:
        super().close()
        for handle in self._handles:
            handle.remove()

    def _listen(self, name: str, module: nn.Module) -> RemovableHandle:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            feature = output if isinstance(output, Tensor) else output[0]
            if tracing():
                self._shapes[name] = tuple(feature.shape[1:])
            elif torch.is_grad_enabled():
                self._features[name] = feature

        return module.register_forward_hook(note)

    def _most_operations(self, replayed: int) -> int:
        """Of all blocks, every one of them trained."""
        if replayed and replayed not in self._most:
            shape = self.learner.data.input_shape
            if not self._shapes:
                trace(self.learner.model, (torch.empty(2, *shape, device="meta"),))
            features = [torch.empty(replayed, *each, device="meta") for each in (shape, *self._shapes.values())]
            works = [work_of(*pair, *matched(*pair), self.power_iterations) for pair in itertools.pairwise(features)]
            self._most[replayed] = sum(work.forward + work.backward_front + work.backward_latter for work in works)
        return self._most.get(replayed, 0)

    def _constants(self, features: Sequence[Tensor]) -> Iterator[Tensor]:
        """Of every block, for every sample; the work is noted for `operations`."""
        for front, latter in itertools.pairwise(features):
            incoming, outgoing = matched(front, latter)
            self._work.append(work_of(front, latter, incoming, outgoing, self.power_iterations))
            yield lipschitz_constants(incoming, outgoing, self.power_iterations)

    def _term(self, constants: Sequence[Tensor]) -> Tensor:
        means = torch.stack([of_block.mean() for of_block in constants])
        term = self.lipschitz_weight * means.mean()
        if self.averaged < self.target_steps:
            self.averaged += 1
            self.targets += (means.detach() - self.targets) / self.averaged
            return term
        away = [(of_block - target).abs().mean() for of_block, target in zip(constants, self.targets, strict=True)]
        return term + self.target_weight * torch.stack(away).mean()


def matched(front: Tensor, latter: Tensor) -> tuple[Tensor, Tensor]:
    """What goes into a block and what comes out, as [samples, channels, positions] with the same positions.

    Channels of every position have norm 1; the larger map is then averaged down to the smaller. Behind a layer that
    has no positions (a vector for every sample) the samples of the batch stand in for them.
    """
    if front.ndim == 2 or latter.ndim == 2:
        return tuple(_unit(feature.flatten(1)).T[None] for feature in (front, latter))  # type: ignore[return-value]
    front, latter = _unit(_channels_first(front)), _unit(_channels_first(latter))
    if front.ndim == latter.ndim == 4:
        if front.shape[2:] != latter.shape[2:]:
            size = (min(front.shape[2], latter.shape[2]), min(front.shape[3], latter.shape[3]))
            front, latter = (F.adaptive_avg_pool2d(feature, size) for feature in (front, latter))
        return front.flatten(2), latter.flatten(2)
    front, latter = front.flatten(2), latter.flatten(2)
    if front.shape[2] != latter.shape[2]:
        positions = min(front.shape[2], latter.shape[2])
        front, latter = (F.adaptive_avg_pool1d(feature, positions) for feature in (front, latter))
    return front, latter


def lipschitz_constants(front: Tensor, latter: Tensor, iterations: int) -> Tensor:
    """Spectral norms of the transmitting matrices, differentiable: one for every sample."""
    positions = front.shape[2]
    with torch.no_grad():
        transmitting = torch.bmm(front, latter.transpose(1, 2)) / positions
        right = torch.linspace(1, 2, transmitting.shape[2]).to(transmitting)[None, :, None]  # never orthogonal to all
        right = right.expand(len(transmitting), -1, -1)
        for _ in range(iterations):
            left = _unit(torch.bmm(transmitting, right))
            right = _unit(torch.bmm(transmitting.transpose(1, 2), left))
    through = torch.bmm(left.transpose(1, 2), front) * torch.bmm(right.transpose(1, 2), latter)
    return through.sum((1, 2)) / positions


@dataclass(frozen=True)
class Work:
    """Operations for one block's constants, under rule `real`: forward, and the gradients of its two features."""

    forward: int
    backward_front: int
    backward_latter: int


def work_of(front: Tensor, latter: Tensor, incoming: Tensor, outgoing: Tensor, iterations: int) -> Work:
    """Of `matched` and `lipschitz_constants`, by shape."""
    samples, inside, positions = incoming.shape
    outside = outgoing.shape[1]
    matrix = samples * inside * outside
    forward = matrix * (2 * positions + 1 + 4 * iterations) + 5 * iterations * samples * (inside + outside)
    backward = []
    for feature, as_matched in ((front, incoming), (latter, outgoing)):
        pooling = 0 if as_matched.numel() == feature.numel() else feature.numel()
        projection = 2 * as_matched.numel()
        forward += 4 * feature.numel() + pooling + projection
        backward.append(10 * feature.numel() + pooling + projection)
    return Work(forward, *backward)


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
    own = {"__doc__": f"Lipschitz-driven rehearsal over {method.name}", "name": name or f"lider-{method.name}"}
    found: type[Method] = dataclass(type(f"Lipschitz{method.__name__}", (LipschitzTerm, method), own))
    return found


METHODS.family("lider-", lider_over)
LIDER = METHODS.register("lider")(lider_over(DarkExperienceReplay, "lider"))
LIDER.__doc__ = "Lipschitz-driven rehearsal over der++; over another method: lider-NAME"
