"""Layer freezing in a plain training loop: one physical backward that does not compute what is frozen.

    freezing = LayerFreezing(model, "adaptive", example=images)
    ...
    loss = F.cross_entropy(model(images), labels)
    freezing.backward(loss)          # instead of loss.backward()
    optimizer.step()

The decision is taken after the forward pass. `loss.backward(inputs=trained)` then runs just the part of the graph that
leads to a trained parameter; a frozen parameter has no gradient, so the optimizer leaves it and its state alone.
The model is not wrapped: two hooks note the shape of its input and the last feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from budgeted.budget import NOTHING, BlockPrices, Cost, Ledger, Purpose, Rule, total
from budgeted.budget.optimizer import OptimizerPrice
from budgeted.budget.pricing import Unpriced
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing.batch_norm import HeldStatistics
from budgeted.freezing.chain import BlockChain, NoBlockChain
from budgeted.freezing.feature_gradient import FeatureGradient
from budgeted.freezing.policies import FreezingPolicy, StepView
from budgeted.freezing.registry import policy as policy_by_name
from budgeted.freezing.step_prices import Forward, StepPrices, cross_entropy_of
from budgeted.freezing.units import Granularity

BatchNormStatistics = Literal["update", "hold"]


class BadLoss(BudgetedError):
    """A loss that cannot be trained on: not finite, not a scalar, or not the model's."""


@dataclass(frozen=True, slots=True)
class FrozenStep:
    """What one backward did: which blocks rested, and what the step cost by purpose."""

    frozen: frozenset[int]
    costs: Mapping[Purpose, Cost]
    frozen_share: float
    """share of the full backward that was not run, under rule `real`"""
    loss: float
    """the loss, as it was given"""


@dataclass(frozen=True, slots=True)
class _Part:
    """A frozen set on one batch shape: who rests, who is trained, and the price."""

    frozen: frozenset[int]
    modules: frozenset[str]
    resting: list[nn.Parameter]
    trained: list[nn.Parameter]
    costs: Mapping[Purpose, Cost]
    share: float


class LayerFreezing:
    """Decides per step which blocks to freeze, runs the backward without them, and keeps the price."""

    def __init__(
        self,
        model: nn.Module,
        policy: FreezingPolicy | str,
        example: Tensor | Sequence[Any] = (),
        *,
        keywords: Mapping[str, Any] | None = None,
        loss: Callable[[Any], Tensor] | None = cross_entropy_of,
        optimizer: torch.optim.Optimizer | None = None,
        ledger: Ledger | None = None,
        granularity: Granularity = "block",
        batch_norm: BatchNormStatistics = "update",
        criterion_rule: Rule = "real",
        unpriced: Unpriced = "refuse",
    ) -> None:
        """
        model: any feed-forward module; it is not wrapped.
        policy: what to freeze, and when; a policy or its name.
        example: inputs like those of training (their shapes are used); `keywords` likewise.
        loss: from the model's output to a loss, to price it; None leaves the loss out of the price.
        optimizer: priced and charged if given.
        ledger: charged in every step if given; a step that it does not afford raises BudgetSpent before the backward.
        granularity: freeze whole blocks, or single layers.
        batch_norm: running statistics of a frozen block go on (`update`) or stay as they were (`hold`).
        criterion_rule: the rule whose prices the adaptive criterion weighs.
        unpriced: what to do about an operator without a price.
        """
        for what, chosen, known in (
            ("granularity", granularity, Granularity),
            ("batch_norm", batch_norm, BatchNormStatistics),
            ("criterion_rule", criterion_rule, Rule),
            ("unpriced", unpriced, Unpriced),
        ):
            if chosen not in get_args(known):
                raise UnknownName(what, str(chosen), get_args(known))
        self.model = model
        self.policy: FreezingPolicy = policy_by_name(policy) if isinstance(policy, str) else policy
        if isinstance(self.policy, type) or not isinstance(self.policy, FreezingPolicy):
            raise BudgetedError(f"{policy!r} is no freezing policy: give a name such as 'adaptive', or an object")
        self.ledger = ledger
        self.prices = StepPrices(model, loss, granularity, unpriced)
        inputs = (example,) if isinstance(example, Tensor) else tuple(example)
        self.chain: BlockChain = self.prices.chain(self.prices.forward(inputs, keywords))
        self.step = 0
        self._optimizer = optimizer
        self._optimizer_price = None if optimizer is None else OptimizerPrice(optimizer)
        self._criterion_rule: Rule = criterion_rule
        self._held = HeldStatistics(model) if batch_norm == "hold" else None
        self._forwards: list[Forward] = []  # training forwards since the last backward
        self._ended = False
        self._parts: dict[tuple[Forward, frozenset[int]], _Part] = {}
        self._features = FeatureGradient(model, self.chain.head)
        self._parameters = dict(model.named_parameters())
        self._handle = model.register_forward_pre_hook(self._note_forward, with_kwargs=True)

    # -- the user's side -----------------------------------------------------------------------------------

    def backward(
        self,
        loss: Tensor,
        logits: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        decided: Callable[[Sequence[nn.Parameter]], None] | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> FrozenStep:
        """Decide what to freeze and run the backward pass without it.

        With `logits` and `targets` of a plain cross-entropy and a linear head the feature gradient is computed in
        closed form; otherwise autograd is asked for the last feature alone. `decided` is told the frozen parameters
        just before the backward. With a `scaler` the loss is scaled for the backward and the gradients are unscaled
        (this needs the optimizer) before anything looks at them.
        """
        self._ended = True  # whatever comes of it, the next forward starts a new step
        step = self._backward(loss, logits, targets, decided, scaler)
        self._forwards.clear()
        self._features.clear()
        return step

    def price(self, inputs: Tensor | Sequence[Any], frozen: Sequence[int] = ()) -> BlockPrices:
        """What forward, loss and backward of a batch like `inputs` cost, per block."""
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        return self.prices.of(self.prices.forward(inputs), self.chain.check(frozen))

    def most(self, inputs: Tensor | Sequence[Any]) -> Cost:
        """What a step on such a batch costs at most: nothing frozen, all parameters stepped, gradients looked at."""
        everything = [p for p in self._parameters.values() if p.requires_grad]
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        step = self.price(inputs)
        cost = step.total + self._optimizer_cost(everything)
        if getattr(self.policy, "looks", False):
            # the gradient at the feature is a part of the head's backward, in closed form no dearer than twice the head
            feature = 2 * step.forward[-1].real + step.backward[-1].real
            cost += Cost(0, 2 * sum(p.numel() for p in everything) + feature)
        return cost

    def refresh(self) -> None:
        """Look at the model again: call it when parameters were replaced (a head that grew is noticed by itself)."""
        self._parameters = dict(self.model.named_parameters())
        self._features.find()
        self.prices.forget()
        self._parts.clear()

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._handle.remove()
        self._features.remove()
        if self._held is not None:
            self._held.remove()

    def state_dict(self) -> dict[str, Any]:
        """The policy's averages and draws: plain numbers, ready for JSON or a checkpoint."""
        return {
            "step": self.step,
            "policy": type(self.policy).__name__,
            "state": self.policy.state_dict(),
            "closed_form_checked": self._features.checked,  # the check is run, and charged, once
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"step", "policy", "state"} <= set(state):
            raise BudgetedError("this is no saved state of a layer freezing: it needs step, policy and state")
        if state["policy"] != type(self.policy).__name__:
            raise BudgetedError(
                f"the saved state is of policy {state['policy']}, this is {type(self.policy).__name__}: "
                "build the freezing with the policy that it was saved with"
            )
        self.step = int(state["step"])
        self.policy.load_state_dict(state["state"])
        self._features.checked = bool(state.get("closed_form_checked", False))

    # -- inside --------------------------------------------------------------------------------------------

    def _backward(
        self,
        loss: Tensor,
        logits: Tensor | None,
        targets: Tensor | None,
        decided: Callable[[Sequence[nn.Parameter]], None] | None,
        scaler: torch.amp.GradScaler | None,
    ) -> FrozenStep:
        value = self._check(loss)
        if (logits is None) != (targets is None):
            raise BudgetedError("give backward() both logits and targets, or neither")
        if scaler is not None and self._optimizer is None:
            raise BudgetedError("a scaler unscales an optimizer's gradients: give LayerFreezing the optimizer")
        looked: list[Cost] = []
        view = self._view(loss, logits, targets, looked)
        before = self.policy.state_dict() if self.ledger is not None and self.ledger.compute is not None else None
        part = self._part(self._decide(view))
        costs: dict[Purpose, Cost] = {**part.costs, "fisher": total(looked)}
        if before is not None and self.ledger is not None:
            looks = getattr(self.policy, "looks", False)
            looking = Cost(0, 2 * sum(parameter.numel() for parameter in part.trained) if looks else 0)
            if not self.ledger.affords(total(costs.values()) + looking):
                self.policy.load_state_dict(before)
                if self._held is not None:
                    self._held.restore(frozenset(self._held.names))  # a refused step leaves nothing behind
                self.ledger.refuse(total(costs.values()) + looking)
        for parameter in part.resting:
            parameter.grad = None  # a zero left by zero_grad(set_to_none=False) would still move it by momentum
        if decided is not None:
            decided(part.resting)
        self._run(loss if scaler is None else scaler.scale(loss), part.trained)
        if scaler is not None and self._optimizer is not None:
            scaler.unscale_(self._optimizer)
        if self._held is not None:
            self._held.restore(part.modules)
        self.policy.after_backward(view, part.frozen)
        costs["fisher"] = total(looked)
        if self.ledger is not None:
            self.ledger.charge(costs)
        self.step += 1
        return FrozenStep(part.frozen, costs, part.share, value)

    def _decide(self, view: StepView) -> frozenset[int]:
        answer = self.policy.decide(view)
        if not isinstance(answer, set | frozenset) or not all(isinstance(block, int) for block in answer):
            raise BudgetedError(f"the policy answered {answer!r}: it must answer with a set of block numbers")
        return self.chain.check(answer)

    def _run(self, loss: Tensor, trained: list[nn.Parameter]) -> None:
        if not trained:
            raise BadLoss("nothing is left to train: the head is not trained and every other block is frozen")
        had = [parameter.grad for parameter in trained]
        try:
            loss.backward(inputs=trained)
        except RuntimeError as error:
            raise BadLoss(f"the backward pass failed: {str(error).splitlines()[0]}") from error
        if all(old is None and parameter.grad is None for old, parameter in zip(had, trained, strict=True)):
            raise BadLoss("the loss does not depend on the model: no parameter got a gradient")

    def _note_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and not tracing():
            if self._features.head_changed():
                self.refresh()
            if self._ended:
                self._forwards.clear()
                self._ended = False
            self._forwards.append(self.prices.forward(args, kwargs))

    def _part(self, frozen: frozenset[int]) -> _Part:
        """What a frozen set means for the forwards of this step; worked out once per shape."""
        parts = [self._part_of(forward, frozen) for forward in self._forwards]
        if len(parts) == 1:
            return parts[0]
        costs: dict[Purpose, Cost] = {  # one optimizer step for all of them
            "forward": total(part.costs["forward"] for part in parts),
            "backward": total(part.costs["backward"] for part in parts),
            "optimizer": parts[0].costs["optimizer"],
        }
        first = parts[0]
        return _Part(frozen, first.modules, first.resting, first.trained, costs, first.share)

    def _part_of(self, forward: Forward, frozen: frozenset[int]) -> _Part:
        part = self._parts.get((forward, frozen))
        if part is None:
            chain = self.prices.chain(forward)
            if chain.blocks != self.chain.blocks:
                raise NoBlockChain(
                    "this forward has other blocks than the example's (another mode, another branch): "
                    "give LayerFreezing the model and an example as in training"
                )
            names = self.chain.frozen_parameters(frozen)
            idle = names | set(self.chain.unused)
            trained = [p for name, p in self._parameters.items() if p.requires_grad and name not in idle]
            prices, full = self.prices.of(forward, frozen), self.prices.of(forward)
            costs: dict[Purpose, Cost] = {
                "forward": total(prices.forward),
                "backward": total(prices.backward),
                "optimizer": self._optimizer_cost(trained),
            }
            whole = total(full.backward).real
            part = _Part(
                frozen,
                self.chain.modules_in(frozen),
                [self._parameters[name] for name in sorted(names)],
                trained,
                costs,
                1 - costs["backward"].real / whole if whole else 0.0,
            )
            self._parts[(forward, frozen)] = part
        return part

    def _optimizer_cost(self, trained: Sequence[nn.Parameter]) -> Cost:
        return NOTHING if self._optimizer_price is None else self._optimizer_price.step(trained)

    def _view(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None, looked: list[Cost]) -> StepView:
        """What the policy may look at; what looking costs goes to `looked` (purpose `fisher`)."""
        forward = self._forwards[-1]

        def feature_gradient() -> float:
            size, cost = self._features.size(loss, logits, targets, lambda: self.prices.to_feature(forward).real)
            looked.append(Cost(0, cost))
            return size

        def squared_gradients() -> list[float]:
            sums, elements = [], 0
            for block in range(len(self.chain)):
                gradients = [self._parameters[name].grad for name in self.chain.owned(block)]
                present = [gradient for gradient in gradients if gradient is not None]
                elements += sum(gradient.numel() for gradient in present)
                sums.append(float(sum(float(torch.linalg.vector_norm(g)) ** 2 for g in present)))
            looked.append(Cost(0, 2 * elements))
            return sums

        return StepView(
            step=self.step,
            blocks=len(self.chain),
            full_cost=lambda: self.prices.of(forward).total.under(self._criterion_rule),
            saved=lambda: self.prices.saved(forward, self._criterion_rule),
            feature_gradient=feature_gradient,
            squared_gradients=squared_gradients,
        )

    def _check(self, loss: Tensor) -> float:
        if not isinstance(loss, Tensor):
            raise BadLoss(f"the loss is a {type(loss).__name__}: give the tensor that the model's output leads to")
        if loss.numel() != 1:
            raise BadLoss(f"the loss has shape {tuple(loss.shape)}: reduce it to one number, as with .mean()")
        if not loss.requires_grad:
            raise BadLoss(
                "the loss does not depend on the model: compute it from the model's output, with gradients enabled"
            )
        value = float(loss.item())
        if not math.isfinite(value):
            raise BadLoss(
                f"the loss is {value} in step {self.step}: nothing was changed; lower the learning rate "
                "or check the inputs"
            )
        if not self._forwards:
            raise BadLoss("backward() came without a training forward: call the model, then backward(loss)")
        return value
