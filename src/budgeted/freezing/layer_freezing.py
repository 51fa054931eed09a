"""Layer freezing in a plain training loop: one physical backward that does not compute what is frozen.

    freezing = LayerFreezing(model, AdaptivePrefix(), example=(images,))
    ...
    loss = F.cross_entropy(model(images), labels)
    freezing.backward(loss)          # instead of loss.backward()
    optimizer.step()

The decision is taken after the forward pass. `loss.backward(inputs=trained)` then runs just the part of the graph that
leads to a trained parameter; a frozen parameter has no gradient, so the optimizer leaves it and its state alone.
The model is not wrapped: two hooks note the shape of its input and the last feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from budgeted.budget import NOTHING, BlockPrices, Cost, Ledger, Purpose, Rule, total
from budgeted.budget.optimizer import operations_per_element, step_cost
from budgeted.budget.pricing import Unpriced
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing import feature_gradient as features
from budgeted.freezing.batch_norm import HeldStatistics
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.policies import FreezingPolicy, StepView
from budgeted.freezing.step_prices import StepPrices, cross_entropy_of
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


@dataclass(slots=True)
class _Seen:
    """What the hooks noted of the last forward."""

    inputs: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    feature: Tensor | None = None


class LayerFreezing:
    """Decides per step which blocks to freeze, runs the backward without them, and keeps the price."""

    def __init__(
        self,
        model: nn.Module,
        policy: FreezingPolicy,
        example: Sequence[Any],
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
        policy: what to freeze, and when.
        example: inputs like those of training (their shapes are used); `keywords` likewise.
        loss: from the model's output to a loss, to price it; None leaves the loss out of the price.
        optimizer: priced and charged if given.
        ledger: charged in every step if given; a step that it does not afford raises BudgetSpent before the backward.
        granularity: freeze whole blocks, or single layers.
        batch_norm: running statistics of a frozen block go on (`update`) or stay as they were (`hold`).
        criterion_rule: the rule whose prices the adaptive criterion weighs.
        unpriced: what to do about an operator without a price.
        """
        self.model = model
        self.policy = policy
        self.ledger = ledger
        self.prices = StepPrices(model, loss, granularity, unpriced)
        self.chain: BlockChain = self.prices.chain(example, keywords)
        self.step = 0
        self._optimizer = optimizer
        self._per_element = 0.0 if optimizer is None else operations_per_element(optimizer)
        self._criterion_rule: Rule = criterion_rule
        self._held = HeldStatistics(model) if batch_norm == "hold" else None
        self._seen = _Seen()
        self._closed_form_checked = False
        self._parameters: dict[str, nn.Parameter] = {}
        self._handles = [model.register_forward_pre_hook(self._note_inputs, with_kwargs=True)]
        self._head: nn.Module = model.get_submodule(self.chain.head)
        self.refresh()

    # -- the user's side -----------------------------------------------------------------------------------

    def backward(self, loss: Tensor, logits: Tensor | None = None, targets: Tensor | None = None) -> FrozenStep:
        """Decide what to freeze and run the backward pass without it.

        With `logits` and `targets` of a plain cross-entropy and a linear head the feature gradient is computed in
        closed form; otherwise autograd is asked for the last feature alone.
        """
        self._check(loss)
        if (logits is None) != (targets is None):
            raise BudgetedError("give backward() both logits and targets, or neither")
        view, extra = self._view(loss, logits, targets)
        frozen = self.chain.check(self.policy.decide(view))
        resting = self.chain.frozen_parameters(frozen)
        trained = [p for name, p in self._parameters.items() if p.requires_grad and name not in resting]
        prices = self.prices.of(self._seen.inputs, frozen, self._seen.keywords)
        costs: dict[Purpose, Cost] = {
            "forward": total(prices.forward),
            "backward": total(prices.backward),
            "optimizer": step_cost(self._per_element, trained) if self._optimizer is not None else NOTHING,
            "fisher": extra(),
        }
        if self.ledger is not None and not self.ledger.affords(total(costs.values())):
            self.ledger.charge(costs)  # raises, and says what is missing
        loss.backward(inputs=trained)
        if self._held is not None:
            self._held.restore(resting)
        self.policy.after_backward(view, frozen)
        costs["fisher"] = extra()
        self._check_reached(trained)
        if self.ledger is not None:
            self.ledger.charge(costs)
        self.step += 1
        full = total(self.prices.of(self._seen.inputs, (), self._seen.keywords).backward).real
        self._seen.feature = None  # do not keep the graph alive
        return FrozenStep(frozen, costs, 1 - costs["backward"].real / full if full else 0.0)

    def price(self, inputs: Sequence[Any], frozen: Sequence[int] = ()) -> BlockPrices:
        """What forward, loss and backward of a batch like `inputs` cost, per block."""
        return self.prices.of(inputs, self.chain.check(frozen))

    def refresh(self) -> None:
        """Look at the model again: call it when parameters were replaced (a head that grew is noticed by itself)."""
        self._parameters = dict(self.model.named_parameters())
        self._head = self.model.get_submodule(self.chain.head)
        self._head_weight = getattr(self._head, "weight", None)
        self.prices.forget()
        for handle in self._handles[1:]:
            handle.remove()
        self._handles[1:] = [self._head.register_forward_pre_hook(self._note_feature)]

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        if self._held is not None:
            self._held.remove()

    def state_dict(self) -> dict[str, Any]:
        """The policy's averages and draws: plain numbers, ready for JSON or a checkpoint."""
        return {"step": self.step, "policy": type(self.policy).__name__, "state": self.policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["policy"] != type(self.policy).__name__:
            raise BudgetedError(
                f"the saved state is of policy {state['policy']}, this is {type(self.policy).__name__}: "
                "build the freezing with the policy that it was saved with"
            )
        self.step = int(state["step"])
        self.policy.load_state_dict(state["state"])

    # -- inside --------------------------------------------------------------------------------------------

    def _note_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and not tracing():
            if self._head_changed():
                self.refresh()
            self._seen = _Seen(args, kwargs)

    def _head_changed(self) -> bool:
        head = self.model.get_submodule(self.chain.head)
        return head is not self._head or getattr(head, "weight", None) is not self._head_weight

    def _note_feature(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and not tracing() and args and isinstance(args[0], Tensor):
            self._seen.feature = args[0]

    def _view(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None) -> tuple[StepView, Callable[[], Cost]]:
        """The policy's view, and a function that tells what looking has cost so far (purpose `fisher`)."""
        seen = self._seen
        spent: list[Cost] = []
        full = self.prices.of(seen.inputs, (), seen.keywords)

        def feature_gradient() -> float:
            if seen.feature is None or not seen.feature.requires_grad:
                return 0.0  # nothing below the head is trained
            if logits is not None and targets is not None:
                weight = getattr(self._head, "weight", None)
                if not isinstance(self._head, nn.Linear) or not isinstance(weight, Tensor):
                    raise features.NotPlainCrossEntropy(
                        f"the head {self.chain.head!r} is no linear layer: leave logits and targets out of backward()"
                    )
                rows = features.closed_form(logits, targets, weight)
                if not self._closed_form_checked:
                    features.check_closed_form(rows, loss, seen.feature)
                    self._closed_form_checked = True
                spent.append(features.closed_form_cost(len(rows), weight.shape[0], weight.shape[1]))
                return features.mean_square(rows)
            rows = features.by_autograd(loss, seen.feature)
            # the loss and the head run backwards to the feature once more than in the step itself
            once_more = self.prices.to_feature(seen.inputs, seen.keywords).real
            spent.append(Cost(0, once_more + 3 * rows.numel()))
            return features.mean_square(rows)

        def squared_gradients() -> list[float]:
            sums = []
            elements = 0
            for block in range(len(self.chain)):
                gradients = [self._parameters[name].grad for name in self.chain.owned(block)]
                present = [gradient for gradient in gradients if gradient is not None]
                elements += sum(gradient.numel() for gradient in present)
                sums.append(float(sum(float(torch.linalg.vector_norm(g)) ** 2 for g in present)))
            spent.append(Cost(0, 2 * elements))
            return sums

        view = StepView(
            step=self.step,
            blocks=len(self.chain),
            full_cost=full.total.under(self._criterion_rule),
            saved=self.prices.saved(seen.inputs, self._criterion_rule, seen.keywords),
            feature_gradient=feature_gradient,
            squared_gradients=squared_gradients,
        )
        return view, lambda: total(spent)

    def _check(self, loss: Tensor) -> None:
        if loss.numel() != 1:
            raise BadLoss(f"the loss has shape {tuple(loss.shape)}: reduce it to one number, as with .mean()")
        if not loss.requires_grad:
            raise BadLoss(
                "the loss does not depend on the model: compute it from the model's output, with gradients enabled"
            )
        if not bool(torch.isfinite(loss.detach())):
            raise BadLoss(
                f"the loss is {float(loss.detach())} in step {self.step}: nothing was changed; lower the learning rate "
                "or check the inputs"
            )
        if not self._seen.inputs and not self._seen.keywords:
            raise BadLoss("backward() came without a training forward: call the model, then backward(loss)")

    def _check_reached(self, trained: list[nn.Parameter]) -> None:
        if trained and all(parameter.grad is None for parameter in trained):
            raise BadLoss("the loss does not depend on the model: no parameter got a gradient")
