"""CCL-DC: collaborative continual learning with a distillation chain (Wang et al., CVPR 2024), over any method.

Two networks learn the same stream from different weights, and each teaches the other. Beside the step's own batch both
see four views of it, each harder than the one before: as it is, varied, varied again, and once more:

    loss of either = weight of its own loss + label_weight * sum of CE(view)
                   + distillation * sum of KL(view k of the other, k + 1 of the other's -> view k of its own)

so that what a network says to an easier view follows what the other says to the next harder one; the hardest follows
the hardest. A teacher has no gradient. Predictions are made from the mean of both.

    --method ccl-dc                    over ER
    --method ccl-dc-der++              over DER++, and so over any: ccl_dc_over(METHODS["der++"])

Each network has the method's own loss, and whatever the method keeps of its network; the memory is one, and what the
method writes to it (stored logits) comes from the mean of both.

Cost: five forwards and five backwards of either network: ten of ER's steps. Bytes: another network, and what the method
keeps once more. Deviations, ours / paper / published code: docs/methods/ccl-dc.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.budget import Purpose
from budgeted.errors import BudgetedError
from budgeted.limits import limited
from budgeted.methods.er import ER
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Behind, Method, Step
from budgeted.network import Network
from budgeted.network.evaluation_mode import evaluating
from budgeted.problems.batches import joined, length

_LINKS = 3  # of the chain: views beyond the batch as it is


@dataclass
class Collaboration(Behind):
    """A second network beside the method behind it (in the order of a class's bases)."""

    kept = ("peer", "twin")
    base: ClassVar[type[Method]]
    """the method behind"""

    label_weight: float = limited(0.5, "0 or more")
    """weight of the labels of a view; of a plain cross-entropy of the batch, too"""
    distillation: float = limited(1.0, "0 or more")
    """weight of what the other network says"""
    kd_temperature: float = limited(4.0, "above 0")
    """of the distillation"""
    _both: bool = field(default=False, init=False, repr=False, compare=False)  # are there two already?
    _peer_loss: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _peer_logits: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        self.peer = learner.another_network()
        own = {item.name: getattr(self, item.name) for item in fields(self.base) if item.init}
        self.twin = self.base(**own)
        self.twin.columns(learner.problem.classes)
        self.twin.begin(cast(LentToMethod, _BesideTheOther(learner, self.peer)))
        self._both = True

    # -- a step ------------------------------------------------------------------------------------------------

    def pick(self, samples: Any, rows: Tensor) -> Tensor:
        """The first half picks; the second is asked where that is more than a choice."""
        if self.leaves_out:
            self.twin.pick(samples, rows)
        return super().pick(samples, rows)

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        peer_logits = self.peer.forward(step.inputs)
        chain = self._chain_of(step.samples)
        mine, theirs = (self._of_each(network, chain) for network in (self.learner.network, self.peer))
        self._peer_logits = peer_logits.detach()
        self._peer_loss = self._beside_the_other(self.twin.loss(step, peer_logits), theirs, mine, step.labels)
        return self._beside_the_other(super().loss(step, logits), mine, theirs, step.labels)

    def after_backward(self, step: Step) -> None:
        super().after_backward(step)
        assert self._peer_loss is not None
        self.peer.freezing.share = self.learner.network.freezing.share
        self.peer.backward_beside(self._peer_loss)
        self._peer_loss = None
        self.twin.after_backward(step)

    def after_step(self, step: Step, logits: Tensor) -> None:
        self.peer.update()
        assert self._peer_logits is not None
        super().after_step(step, self.learner.run("backward", _mean, logits, self._peer_logits))
        self.twin.after_step(step, self._peer_logits)

    def _chain_of(self, samples: Any) -> Any:
        """The batch as it is, and ever harder: one behind the other."""
        found = [samples]
        for _ in range(_LINKS):
            found.append(self.learner.problem.vary(found[-1], self.learner.generator("technique")))
        return self.learner.inputs_of(joined(found))

    def _of_each(self, network: Network, chain: Any) -> Sequence[Tensor]:
        """What a network says to each view."""
        outputs: Tensor = network.forward_also(chain, moves=True, parts=_LINKS + 1)
        return outputs.chunk(_LINKS + 1)

    def _beside_the_other(
        self, own: Tensor, views: Sequence[Tensor], of_other: Sequence[Tensor], labels: Tensor
    ) -> Tensor:
        terms = [(self.label_weight if self.base.plain() else 1.0) * own]
        for place, view in enumerate(views):
            harder = of_other[min(place + 1, len(views) - 1)].detach()
            taught = self.learner.run("forward", softened, harder, self.kd_temperature)
            terms.append(self.label_weight * F.cross_entropy(view, labels))
            terms.append(self.distillation * distance(view, *taught, self.kd_temperature))
        return torch.stack(terms).sum()

    # -- the rest of its life ----------------------------------------------------------------------------------

    def grown(self) -> None:
        super().grown()
        if not self._both:  # the method begins, and follows its own network
            return
        problem = self.learner.problem
        problem.grow(self.peer, max(1, len(problem.keys)), self.learner.generator("technique"))
        self.twin.grown()

    def end_task(self) -> None:
        super().end_task()
        self.twin.end_task()
        self.peer.end_task()

    def respond(self, model: nn.Module, inputs: Any) -> Any:
        """The mean of both."""
        with evaluating(self.peer.model):
            return _mean(super().respond(model, inputs), super().respond(self.peer.model, inputs))


class _BesideTheOther:
    """The learner as the method's second half sees it: its network is the peer, and the memory is not its to write."""

    def __init__(self, learner: LentToMethod, network: Network) -> None:
        self._learner, self.network = learner, network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    @property
    def memory(self) -> Any:
        return _Read(self._learner.memory)

    def answers(self, purpose: Purpose, samples: Any, *, augment: bool = False) -> Tensor:
        return self.network.answers(purpose, [self._learner.inputs_of(samples, augment=augment)], length(samples))


class _Read:
    """A memory that is not written to."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def __len__(self) -> int:
        return len(self._memory)

    def write(self, name: str, slots: Any, values: Tensor) -> None:
        """The first half writes."""


def softened(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Chances and their logarithms."""
    logarithms = (logits.float() / temperature).log_softmax(1)
    return logarithms.exp(), logarithms


def distance(logits: Tensor, chances: Tensor, logarithms: Tensor, temperature: float) -> Tensor:
    """Kullback and Leibler's from chances, times the squared temperature: the mean over the samples."""
    own = (logits / temperature).log_softmax(1)
    return (chances * (logarithms - own)).sum(1).mean() * temperature**2


def _mean(one: Tensor, other: Tensor) -> Tensor:
    return (one + other) / 2


def ccl_dc_over(method: type[Method], name: str | None = None) -> type[Method]:
    """A method with a second network that learns beside its own; its settings are both's."""
    if issubclass(method, Collaboration):
        raise BudgetedError(f"{method.name!r} has a second network already: give the method under it")
    if not method.trains:
        raise BudgetedError(f"CCL-DC teaches in training steps over the stream: {method.name!r} runs none")
    if method.recodes:
        raise BudgetedError(
            f"CCL-DC's second network cannot read what {method.name!r} stores, codes of the first; choose another"
        )
    own = {
        "__doc__": f"collaborative learning of two networks with a distillation chain over {method.name}",
        "name": name or f"ccl-dc-{method.name}",
        "base": method,
    }
    found: type[Method] = dataclass(type(f"Collaborative{method.__name__}", (Collaboration, method), own))
    return found


CCL_DC = METHODS.register("ccl-dc")(ccl_dc_over(ER, "ccl-dc"))
CCL_DC.__doc__ = "two networks that teach each other, over er; over another method: ccl-dc-NAME"
