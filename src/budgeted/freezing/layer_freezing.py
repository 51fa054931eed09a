"""Layer freezing in a plain training loop: one physical backward that does not compute what is frozen.

    freezing = LayerFreezing(model, "adaptive", example=images)
    ...
    loss = F.cross_entropy(model(images), labels)
    freezing.backward(loss)          # instead of loss.backward()
    optimizer.step()

The decision is taken after the forward pass. `loss.backward(inputs=trained)` then runs just the part of the graph that
leads to a trained parameter; a frozen parameter has no gradient, so the optimizer leaves it and its state alone.
The model is not wrapped: hooks note the shape of its input, the last feature and its output. A thread's backward knows
the forwards of that thread alone; another one may run the model meanwhile, to predict with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from budgeted.budget import NOTHING, BlockPrices, Cost, Ledger, Purpose, Rule, total
from budgeted.budget.optimizer import OptimizerPrice
from budgeted.budget.pricing import Unpriced
from budgeted.budget.trace import output_tensors, tracing
from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing.batch_norm import HeldStatistics
from budgeted.freezing.chain import BlockChain, NoBlockChain
from budgeted.freezing.feature_gradient import FeatureGradient
from budgeted.freezing.given import BadLoss, Given, check_loss, refuse_trained_inputs
from budgeted.freezing.hooks import only_for
from budgeted.freezing.looking import Looking
from budgeted.freezing.loss_graph import LossGraph
from budgeted.freezing.part import Part, Parts
from budgeted.freezing.policies import FreezingPolicy, StepView
from budgeted.freezing.ranks import Ranks
from budgeted.freezing.registry import policy as policy_by_name
from budgeted.freezing.step_prices import Forward, StepPrices, cross_entropy_of
from budgeted.freezing.structure import Structure
from budgeted.freezing.units import Granularity
from budgeted.freezing.view import step_view

BatchNormStatistics = Literal["update", "hold"]
LossForPrice = Callable[[Any], Tensor] | Literal["graph"] | None


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
class _Open:
    """An optimizer step under way: what its first micro-batch decided, for those that follow."""

    frozen: frozenset[int]
    policy: dict[str, Any]  # the policy's state after the decision, before any gradient was looked at
    optimizer: Cost


class _Noted(threading.local):
    """What the hooks noted, for each thread by itself."""

    def __init__(self) -> None:
        self.forwards: dict[int, Forward] = {}  # training forwards since the last backward, numbered
        self.number = 0
        self.ended = False
        self.listening = True


class LayerFreezing:
    """Decides per step which blocks to freeze, runs the backward without them, and keeps the price."""

    def __init__(
        self,
        model: nn.Module,
        policy: FreezingPolicy | str,
        example: Tensor | Sequence[Any] = (),
        *,
        keywords: Mapping[str, Any] | None = None,
        loss: LossForPrice = cross_entropy_of,
        optimizer: torch.optim.Optimizer | None = None,
        ledger: Ledger | None = None,
        granularity: Granularity = "block",
        always: Collection[str] = (),
        batch_norm: BatchNormStatistics = "update",
        criterion_rule: Rule = "real",
        unpriced: Unpriced = "refuse",
        ranks: Ranks | None = None,
        optimizer_price: OptimizerPrice | None = None,
    ) -> None:
        """
        model: any feed-forward module; it is not wrapped.
        policy: what to freeze, and when; a policy or its name.
        example: inputs like those of training (their shapes are used); `keywords` likewise.
        loss: from the model's output to a loss, to price it; `graph` reads the price, and whether it is a plain
            cross-entropy, from the graph of every loss that comes; None leaves the loss out of the price.
        optimizer: priced and charged if given.
        ledger: charged in every step if given; a step that it does not afford raises BudgetSpent before the backward.
        granularity: freeze whole blocks, or single layers.
        always: names of modules (or parts of their paths) that never rest, wherever they stand in the chain; they
            count with the head, and the backward goes down to them: little is saved below the first of them.
        batch_norm: running statistics of a frozen block go on (`update`) or stay as they were (`hold`).
        criterion_rule: the rule whose prices the adaptive criterion weighs.
        unpriced: what to do about an operator without a price.
        ranks: the processes that train this model together, if there are several.
        optimizer_price: that of the optimizer, where it is known already.
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
        self._graph = LossGraph(model, unpriced) if loss == "graph" else None
        self.prices = StepPrices(model, None if isinstance(loss, str) else loss, granularity, unpriced, always)
        inputs = (example,) if isinstance(example, Tensor) else tuple(example)
        self.chain: BlockChain = self.prices.chain(self.prices.forward(inputs, keywords))
        self.step = 0
        self._optimizer = optimizer
        if optimizer is not None and optimizer_price is None:
            optimizer_price = OptimizerPrice(optimizer)
        self._parts = Parts(self.prices, self.chain, optimizer_price)
        self._criterion_rule: Rule = criterion_rule
        self._ranks = ranks
        self._structure = Structure(model)
        self._removed = False
        self._held = HeldStatistics(model) if batch_norm == "hold" else None
        self._noted = _Noted()
        self._open: _Open | None = None
        self._features = FeatureGradient(model, self.chain.head, self._graph, self.chain.feature_of)
        watches = getattr(self.policy, "watches", False)
        self._looking = Looking(model, self.chain, lambda: self._noted.listening) if watches else None
        self._handles = [model.register_forward_pre_hook(only_for(model, self.note_forward), with_kwargs=True)]
        if self._graph is not None:
            self._handles.append(model.register_forward_hook(only_for(model, self._note_output)))

    # -- the user's side -----------------------------------------------------------------------------------

    def backward(
        self,
        loss: Tensor,
        logits: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        decided: Callable[[Sequence[nn.Parameter]], None] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        more: bool = False,
        look: bool = True,
    ) -> FrozenStep:
        """Decide what to freeze and run the backward pass without it.

        With `logits` and `targets` of a plain cross-entropy and a linear head the feature gradient is computed in
        closed form; otherwise autograd is asked for the last feature alone. `decided` is told the frozen parameters
        just before the backward. With a `scaler` the loss is scaled for the backward and the gradients are unscaled
        (this needs the optimizer) before anything looks at them.

        `more` leaves the step open: backwards that follow belong to the same optimizer step and freeze the same
        blocks, until one comes without it or `end_step()` is called. The policy then looks at the sum of the gradients,
        the scaler is left to unscale them when the optimizer steps, and the optimizer is charged at the end.
        Without `look`, nothing looks at the gradients of this one and they are not yet averaged over the ranks.
        """
        if self._removed:
            raise BudgetedError("this freezing was removed and sees no forward any more: make a new one for the model")
        self._noted.ended = True  # whatever comes of it, the next forward starts a new step
        if (logits is None) != (targets is None):
            raise BudgetedError("give backward() both logits and targets, or neither")
        if scaler is not None and self._optimizer is None and not more:
            raise BudgetedError("a scaler unscales an optimizer's gradients: give LayerFreezing the optimizer")
        value = check_loss(loss, self.step, self._noted.forwards, self._ranks)
        given = Given(loss, logits, targets, *self._read_by(loss), scaler, more, look)
        step = self._backward(given, value, decided)
        self._noted.forwards.clear()
        self._features.clear()
        if self._looking is not None:
            self._looking.clear()
        return step

    @property
    def waits_for_backward(self) -> bool:
        """Was there a training forward, in this thread, whose loss did not come to `backward` yet?"""
        return bool(self._noted.forwards) and not self._noted.ended

    def end_step(self) -> None:
        """The optimizer has stepped on what backwards with `more` gathered: the next one decides anew."""
        if self._open is not None:
            if self.ledger is not None:
                self._charge({"optimizer": self._open.optimizer}, new_step=False)
            self._open = None
            self.step += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what runs inside: forwards that no backward of ours belongs to."""
        noted, features = self._noted, self._features.noted
        before, noted.listening, features.listening = noted.listening, False, False
        try:
            yield
        finally:
            noted.listening = features.listening = before

    def leave_out(self, term: Tensor) -> None:
        """A term of the coming loss that its maker prices: the graph is not read behind it."""
        if self._graph is not None:
            self._graph.leave_out(term)

    def price(self, inputs: Tensor | Sequence[Any], frozen: Sequence[int] = ()) -> BlockPrices:
        """What forward, loss and backward of a batch like `inputs` cost, per block."""
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        self._notice_other_layers(inputs)
        forward = self.prices.forward(inputs)
        return self.prices.of(forward, self.prices.chain(forward).check(frozen))

    def most(self, inputs: Tensor | Sequence[Any]) -> Cost:
        """What a step on such a batch costs at most: nothing frozen, all parameters stepped, gradients looked at."""
        everything = [p for p in self._parts.parameters.values() if p.requires_grad]
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        step = self.price(inputs)
        cost = step.total + self.optimizer_cost(everything)
        if getattr(self.policy, "looks", False):
            # the gradient at the feature is a part of the head's backward, in closed form no dearer than twice the head
            feature = 2 * step.forward[-1].real + step.backward[-1].real
            cost += Cost(0, 2 * sum(p.numel() for p in everything) + feature)
        if self._looking is not None:
            cost += self.policy.most(self.model, self.chain, step)  # type: ignore[attr-defined]
        return cost

    def optimizer_cost(self, trained: Sequence[nn.Parameter]) -> Cost:
        """What the optimizer's step on these parameters costs."""
        return self._parts.optimizer_cost(trained)

    def refresh(self) -> None:
        """Look at the model again: call it when parameters were replaced (a head that grew is noticed by itself)."""
        self._structure.note()
        self._features.find()
        self.prices.forget()
        self._parts.look_again()

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._removed = True
        for handle in self._handles:
            handle.remove()
        self._features.remove()
        if self._looking is not None:
            self._looking.remove()
        if self._held is not None:
            self._held.remove()

    def nbytes(self, parameters: int) -> int:
        """Bytes that the policy keeps between steps, given the bytes of the model's parameters."""
        own = getattr(self.policy, "nbytes", None)
        return 0 if own is None else int(own(self.model, self.chain, parameters))

    def tensors(self) -> dict[str, Tensor]:
        """What the policy keeps beside the plain numbers of `state_dict`."""
        own = getattr(self.policy, "tensors", None)
        return {} if own is None else dict(own())

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        own = getattr(self.policy, "load_tensors", None)
        if own is not None:
            own(self.model, tensors)

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
        self._open = None

    # -- inside --------------------------------------------------------------------------------------------

    def _read_by(self, loss: Tensor) -> tuple[list[Forward], tuple[Cost, Cost], tuple[nn.Parameter, ...]]:
        """The forwards of this step by what the loss reads of them, what the loss costs, and its own parameters."""
        if self._graph is None:
            return list(self._noted.forwards.values()), (NOTHING, NOTHING), ()
        found = self._graph.price(loss)
        noted = self._noted.forwards
        read = {n: frozenset(index for number, index in found.outputs if number == n) for n in noted}
        forwards = [self.prices.reading(forward, read[number]) for number, forward in noted.items()]
        return forwards, (found.forward, found.backward), found.parameters

    def _backward(
        self, given: Given, value: float, decided: Callable[[Sequence[nn.Parameter]], None] | None
    ) -> FrozenStep:
        view = step_view(
            given,
            self.step,
            self._parts,
            self.prices,
            self.chain,
            self._features,
            self._ranks,
            self._criterion_rule,
            self._looking,
        )
        limited = self.ledger is not None and self.ledger.compute is not None
        before = self.policy.state_dict() if limited else None
        first = self._open is None
        if self._open is None:
            part = self._parts.of(given.forwards, self._decide(view, given.forwards[-1]))
            optimizer = part.costs["optimizer"] + self.optimizer_cost(given.beside)
            opened = _Open(part.frozen, self.policy.state_dict(), optimizer) if given.more else None
        else:
            opened = self._open
            self.policy.load_state_dict(opened.policy)  # what the micro-batch before showed is part of what comes now
            part = self._parts.of(given.forwards, opened.frozen)
        costs = self._costs(given, part)
        if before is not None:
            self._refuse_if_unpaid(costs, part, before)
        if first:
            for parameter in [p for p in part.resting if p.grad is not None]:
                parameter.grad = None  # a zero left by zero_grad(set_to_none=False) would still move it by momentum
        if decided is not None:
            decided(part.resting)
        trained = [*part.trained, *given.beside]
        self._run(given.loss if given.scaler is None else given.scaler.scale(given.loss), trained)
        if given.look and self._ranks is not None:
            costs["backward"] += Cost(0, self._ranks.average(trained))
        if given.scaler is not None and self._optimizer is not None and not given.more:
            given.scaler.unscale_(self._optimizer)
        if self._held is not None:
            self._held.restore(part.modules)
        if given.look:
            self.policy.after_backward(view, part.frozen)
        costs["fisher"] = total(given.looked)
        if opened is not None:
            costs["optimizer"] = NOTHING  # charged once, when the step ends
        if self.ledger is not None:
            self._charge(costs, new_step=first)
        self._open = opened
        if opened is None:
            self.step += 1
        elif not given.more:
            self.end_step()
        return FrozenStep(part.frozen, costs, part.share, value)

    def _costs(self, given: Given, part: Part) -> dict[Purpose, Cost]:
        summed = sum(p.numel() for p in (*part.trained, *given.beside) if p.grad is not None)
        return {
            "forward": part.costs["forward"] + given.loss_costs[0],
            "backward": part.costs["backward"] + given.loss_costs[1] + Cost(0, summed),
            "optimizer": part.costs["optimizer"] + self.optimizer_cost(given.beside),
            "fisher": total(given.looked),
        }

    def _refuse_if_unpaid(self, costs: Mapping[Purpose, Cost], part: Part, policy: dict[str, Any]) -> None:
        """Raise BudgetSpent, with everything as it was, if this step may cost more than is left on any rank."""
        assert self.ledger is not None
        looks = getattr(self.policy, "looks", False)
        cost = total(costs.values()) + Cost(0, 2 * sum(p.numel() for p in part.trained) if looks else 0)
        unpaid = not self.ledger.affords(cost)
        if unpaid if self._ranks is None else self._ranks.any(unpaid):
            self.policy.load_state_dict(policy)
            if self._held is not None:
                self._held.restore(frozenset(self._held.names))  # a refused step leaves nothing behind
            self.ledger.refuse(cost)

    def _charge(self, costs: Mapping[Purpose, Cost], new_step: bool) -> None:
        assert self.ledger is not None
        self.ledger.charge(costs)
        self.ledger.steps -= not new_step  # a step may be charged in several parts

    def _decide(self, view: StepView, forward: Forward) -> frozenset[int]:
        answer = self.policy.decide(view)
        if not isinstance(answer, set | frozenset) or not all(isinstance(block, int) for block in answer):
            raise BudgetedError(f"the policy answered {answer!r}: it must answer with a set of block numbers")
        frozen = self.prices.chain(forward).check(answer)
        return frozen if self._ranks is None else self._ranks.agree(frozen, len(self.chain))

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

    def note_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A hook before the model's forward: what its price will depend on."""
        noted = self._noted
        if noted.listening and torch.is_grad_enabled() and not tracing():
            self._notice_other_layers(args, kwargs)
            if self._features.head_changed():
                self.refresh()
            if noted.ended:
                noted.forwards.clear()
                noted.ended = False
            if self._graph is not None:
                refuse_trained_inputs(args, kwargs)
            noted.number += 1
            noted.forwards[noted.number] = self.prices.forward(args, kwargs)

    def _notice_other_layers(self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> None:
        """Price layers that were added or replaced since, or refuse them where the blocks are others now."""
        if self._structure.changed():
            self.prices.forget()
            changed = self.chain.changed(self.prices.chain(self.prices.forward(inputs, keywords)))
            if changed:
                raise NoBlockChain(
                    f"the model's blocks are others than when this freezing was made (changed: {', '.join(changed)}): "
                    "call remove() and make a new one for the model as it is now"
                )
            self.refresh()

    def _note_output(self, module: nn.Module, args: Any, output: Any) -> None:
        noted = self._noted
        if noted.listening and self._graph is not None and torch.is_grad_enabled() and not tracing():
            self._graph.mark_outputs(noted.number, output_tensors(output))
