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
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from budgeted.budget import NOTHING, BlockPrices, Cost, Ledger, Purpose, Rule, total
from budgeted.budget.kept import Keeps
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
from budgeted.freezing.policies import FreezingPolicy, StepView
from budgeted.freezing.ranks import Ranks
from budgeted.freezing.registry import policy as policy_by_name
from budgeted.freezing.renamed import as_it_was, renamed
from budgeted.freezing.split import Split, Splits
from budgeted.freezing.step_prices import Forward, StepPrices, cross_entropy_of
from budgeted.freezing.structure import Structure
from budgeted.freezing.units import Granularity
from budgeted.freezing.view import Views

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
    policy: Mapping[str, Any]  # what it kept after the decision, before any gradient was looked at
    optimizer: Cost


class _Noted(threading.local):
    """What the hooks noted, for each thread by itself."""

    def __init__(self) -> None:
        self.forwards: dict[int, Forward] = {}  # training forwards since the last backward, numbered
        self.number = 0
        self.ended = False
        self.listening = True
        self.beside = False


class LayerFreezing(Keeps):
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
        if not isinstance(self.policy, FreezingPolicy):
            raise BudgetedError(
                f"{policy!r} is no freezing policy: give a name such as 'adaptive', or one made from FreezingPolicy"
            )
        self.ledger = ledger
        self.share: float | None = None
        """share of the stream that has arrived, for policies that go by it: set it before each backward"""
        self.step = 0
        self.prices = StepPrices(model, None if isinstance(loss, str) else loss, granularity, unpriced, always)
        self._graph = LossGraph(model, unpriced) if loss == "graph" else None
        self._optimizer = optimizer
        if optimizer is not None and optimizer_price is None:
            optimizer_price = OptimizerPrice(optimizer)
        self._optimizer_price = optimizer_price
        self._criterion_rule: Rule = criterion_rule
        self._batch_norm: BatchNormStatistics = batch_norm
        self._ranks = ranks
        self._open: _Open | None = None
        self._removed = False
        inputs = (example,) if isinstance(example, Tensor) else tuple(example)
        self._attach(inputs, keywords)
        self.policy.begin(model, self.chain, as_it_was(self.chain))

    def _attach(self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None) -> None:
        """Find the chain of the model as it is, and hook what is watched."""
        model = self.model
        example = self.prices.forward(inputs, keywords)
        self.chain: BlockChain = self.prices.chain(example)
        self._example = example.inputs, example.keywords
        self._splits = Splits(self.prices, self.chain, self._optimizer_price)
        self._structure = Structure(model)
        self._held = HeldStatistics(model) if self._batch_norm == "hold" else None
        self._noted = _Noted()
        self._features = FeatureGradient(model, self.chain.head, self._graph, self.chain.feature_of)
        listening = lambda: self._noted.listening and not self._noted.beside  # noqa: E731
        self._looking = Looking(model, self.chain, listening) if self.policy.watches else None
        self._views = Views(self._splits, self._features, self._looking, self._ranks, self._criterion_rule)
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
        others = frozenset(list(self._noted.forwards)[:-1])
        given = Given(loss, logits, targets, *self._read_by(loss), scaler, more, look, others)
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

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Forwards inside belong to the step under way and are paid with it, as the loss reads them, but its batch is
        that of the forward before: what a policy looks at is of that one."""
        noted, features = self._noted, self._features.noted
        before, heard, noted.beside, features.listening = noted.beside, features.listening, True, False
        try:
            yield
        finally:
            noted.beside, features.listening = before, heard

    @property
    def listening(self) -> bool:
        """Whether a forward of this thread now is the one that a backward of ours belongs to."""
        return self._noted.listening and not self._noted.beside

    def mark_feature(self, block: int, feature: Tensor) -> None:
        """What a block puts out may be read by the coming loss: its price ends there."""
        if self._graph is not None:
            self._graph.mark_feature(block, feature)

    def last_feature(self) -> Tensor:
        """What the head read in the latest forward of this thread, for a loss that reads it beside the outputs."""
        feature = self._features.noted.feature
        if feature is None:
            raise BudgetedError("there is no last feature: read it after a training forward and before its backward")
        self.mark_feature(len(self.chain) - 2, feature)
        return feature

    def price(
        self,
        inputs: Tensor | Sequence[Any],
        frozen: Sequence[int] = (),
        *,
        keywords: Mapping[str, Any] | None = None,
    ) -> BlockPrices:
        """What forward, loss and backward of a batch like `inputs` cost, per block."""
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        self._notice_other_layers(inputs, keywords)
        forward = self.prices.forward(inputs, keywords)
        return self.prices.of(forward, self.prices.chain(forward).check(frozen))

    def most(self, inputs: Tensor | Sequence[Any], *, keywords: Mapping[str, Any] | None = None) -> Cost:
        """What a step on such a batch costs at most: nothing frozen, all parameters stepped, gradients looked at."""
        everything = [p for p in self._splits.parameters.values() if p.requires_grad]
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        step = self.price(inputs, keywords=keywords)
        cost = step.total + self.optimizer_cost(everything)
        if self.policy.looks:
            # the gradient at the feature is a part of the head's backward, in closed form no dearer than twice the head
            feature = 2 * step.forward[-1].real + step.backward[-1].real
            cost += Cost(0, 2 * sum(p.numel() for p in everything) + feature)
        return cost + self.policy.most(self.model, self.chain, step)

    def foretell(
        self, loss: Tensor, ran: Sequence[tuple[Any, Sequence[Any], Mapping[str, Any]]]
    ) -> dict[Purpose, Cost]:
        """What a step would cost with nothing frozen, for a loss of outputs that nobody computed; nothing is run.

        ran: outputs, inputs and keywords of its forwards.
        """
        forwards = [self.prices.forward(inputs, keywords) for _, inputs, keywords in ran]
        of_loss: tuple[Cost, Cost] = (NOTHING, NOTHING)
        beside: tuple[nn.Parameter, ...] = ()
        if self._graph is not None:
            for number, (outputs, _, _) in enumerate(ran):
                self._graph.mark_outputs(number, output_tensors(outputs))
            found = self._graph.price(loss)
            forwards = self._reading(dict(enumerate(forwards)), found.outputs)
            of_loss, beside = (found.forward, found.backward), found.parameters
        split = self._splits.of(forwards, frozenset())
        return {
            "forward": split.costs["forward"] + of_loss[0],
            "backward": split.costs["backward"] + of_loss[1],
            "optimizer": split.costs["optimizer"] + self.optimizer_cost(beside),
        }

    def optimizer_cost(self, trained: Sequence[nn.Parameter]) -> Cost:
        """What the optimizer's step on these parameters costs."""
        return self._splits.optimizer_cost(trained)

    def refresh(self) -> None:
        """Look at the model again: call it when parameters were replaced (a head that grew is noticed by itself)."""
        self._structure.note()
        self._features.find()
        self.prices.forget()
        self._splits.look_again()

    def changed(self, example: Tensor | Sequence[Any] | None = None, keywords: Mapping[str, Any] | None = None) -> None:
        """The model has other blocks now (a layer, a branch, another extractor): go on with it as it is.

        Blocks that stay keep what the policy knows of them, whatever they are called now; new ones start as at the
        beginning. `example`: inputs as they are now; those of the start if not given. Call it between two steps.
        """
        if self._removed:
            raise BudgetedError("this freezing was removed and sees no forward any more: make a new one for the model")
        if self._open is not None:
            raise BudgetedError(
                "the model changed inside an optimizer step: end the step (the last backward without `more`, or "
                "end_step()), then call changed()"
            )
        inputs = (example,) if isinstance(example, Tensor) else example
        if inputs is None:
            inputs, keywords = self._example[0], {**self._example[1], **(keywords or {})}
        old, parameters, checked, head = self.chain, self._splits.parameters, self._features.checked, self.chain.head
        self.prices.forget()
        try:
            self.prices.chain(self.prices.forward(inputs, keywords))  # refused, if it is, before anything is let go
        except BudgetedError:
            self.prices.forget()  # a model that is put back as it was is looked at anew
            raise
        self._take_hooks_off()
        self._attach(inputs, keywords)
        self._features.checked = checked and self.chain.head == head
        self.policy.begin(self.model, self.chain, renamed(old, parameters, self.chain, self._splits.parameters))

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._removed = True
        self._take_hooks_off()

    def _take_hooks_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._features.remove()
        if self._looking is not None:
            self._looking.remove()
        if self._held is not None:
            self._held.remove()

    # -- what is kept between steps ------------------------------------------------------------------------

    def nbytes(self) -> int:
        """Bytes that the policy keeps."""
        return self.policy.nbytes()

    def written(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        state, tensors = self.policy.written()
        plain = {
            "step": self.step,
            "policy": type(self.policy).__name__,
            "blocks": list(self.chain.names),
            "state": state,
            "closed_form_checked": self._features.checked,  # the check is run, and charged, once
        }
        return plain, tensors

    def load_written(
        self, plain: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device | str = "cpu"
    ) -> None:
        if not {"step", "policy", "blocks", "state"} <= set(plain):
            raise BudgetedError("this is no saved state of a layer freezing: it needs step, policy, blocks and state")
        if plain["policy"] != type(self.policy).__name__:
            raise BudgetedError(
                f"the saved state is of policy {plain['policy']}, this is {type(self.policy).__name__}: "
                "build the freezing with the policy that it was saved with"
            )
        if plain["blocks"] != list(self.chain.names):
            others = sorted(set(plain["blocks"]) ^ set(self.chain.names)) or ["in another order"]
            raise BudgetedError(
                f"the saved state is of a model with other blocks ({', '.join(others[:4])}): load it into one that has "
                "grown as far"
            )
        self.policy.load_written(plain["state"], tensors, device)
        self.step = int(plain["step"])
        self._features.checked = bool(plain.get("closed_form_checked", False))
        self._open = None

    def state_dict(self) -> dict[str, Any]:
        """What is kept as plain numbers, ready for JSON; a policy that keeps tensors has them under `tensors`."""
        plain, tensors = self.written()
        return plain | ({"tensors": {name: t.detach().clone() for name, t in tensors.items()}} if tensors else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.load_written(state, state.get("tensors", {}), device)

    # -- inside --------------------------------------------------------------------------------------------

    def _read_by(self, loss: Tensor) -> tuple[list[Forward], tuple[Cost, Cost], tuple[nn.Parameter, ...]]:
        """The forwards of this step by what the loss reads of them, what the loss costs, and its own parameters."""
        if self._graph is None:
            return list(self._noted.forwards.values()), (NOTHING, NOTHING), ()
        found = self._graph.price(loss)
        return self._reading(self._noted.forwards, found.outputs), (found.forward, found.backward), found.parameters

    def _reading(self, forwards: Mapping[int, Forward], outputs: Collection[tuple[int, int]]) -> list[Forward]:
        """Forwards, by their numbers, under a loss that reads these outputs of them."""
        read = {n: frozenset(index for number, index in outputs if number == n) for n in forwards}
        return [self.prices.reading(forward, read[number]) for number, forward in forwards.items()]

    def _backward(
        self, given: Given, value: float, decided: Callable[[Sequence[nn.Parameter]], None] | None
    ) -> FrozenStep:
        view = self._views.of(given, self.step, self.share)
        limited = self.ledger is not None and self.ledger.compute is not None
        before = self.policy.snapshot() if limited else None
        first = self._open is None
        if self._open is None:
            split = self._splits.of(given.forwards, self._decide(view, given.forwards[-1]))
            optimizer = split.costs["optimizer"] + self.optimizer_cost(given.beside)
            opened = _Open(split.frozen, self.policy.snapshot(), optimizer) if given.more else None
        else:
            opened = self._open
            self.policy.go_back(opened.policy)  # what the micro-batch before showed is part of what comes now
            split = self._splits.of(given.forwards, opened.frozen)
        if self._graph is not None and split.frozen and self._graph.marks_features:
            found = self._graph.price(given.loss, self._unreached(split.frozen))
            given = replace(given, loss_costs=(found.forward, found.backward))
        costs = self._costs(given, split)
        if before is not None:
            self._refuse_if_unpaid(costs, split, before)
        if first:
            for parameter in [p for p in split.resting if p.grad is not None]:
                parameter.grad = None  # a zero left by zero_grad(set_to_none=False) would still move it by momentum
        if decided is not None:
            decided(split.resting)
        trained = [*split.trained, *given.beside]
        self._run(given.loss if given.scaler is None else given.scaler.scale(given.loss), trained)
        if given.look and self._ranks is not None:
            costs["backward"] += Cost(0, self._ranks.average(trained))
        if given.scaler is not None and self._optimizer is not None and not given.more:
            given.scaler.unscale_(self._optimizer)
        if self._held is not None:
            self._held.restore(split.modules)
        if given.look:
            self.policy.after_backward(view, split.frozen)
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
        return FrozenStep(split.frozen, costs, split.share, value)

    def _unreached(self, frozen: frozenset[int]) -> frozenset[int]:
        """Blocks that no gradient has to come back to: nothing up to them is trained."""
        parameters = self._splits.parameters
        trained = (
            block
            for block in range(len(self.chain))
            if block not in frozen and any(parameters[name].requires_grad for name in self.chain.owned(block))
        )
        return frozenset(range(min(trained, default=len(self.chain))))

    def _costs(self, given: Given, split: Split) -> dict[Purpose, Cost]:
        summed = sum(p.numel() for p in (*split.trained, *given.beside) if p.grad is not None)
        return {
            "forward": split.costs["forward"] + given.loss_costs[0],
            "backward": split.costs["backward"] + given.loss_costs[1] + Cost(0, summed),
            "optimizer": split.costs["optimizer"] + self.optimizer_cost(given.beside),
            "fisher": total(given.looked),
        }

    def _refuse_if_unpaid(self, costs: Mapping[Purpose, Cost], split: Split, policy: Mapping[str, Any]) -> None:
        """Raise BudgetSpent, with everything as it was, if this step may cost more than is left on any rank."""
        assert self.ledger is not None
        cost = total(costs.values()) + Cost(0, 2 * sum(p.numel() for p in split.trained) if self.policy.looks else 0)
        unpaid = not self.ledger.affords(cost)
        if unpaid if self._ranks is None else self._ranks.any(unpaid):
            self.policy.go_back(policy)
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
            found = {noted.number: self.prices.forward(args, kwargs)}
            noted.forwards = {**found, **noted.forwards} if noted.beside else {**noted.forwards, **found}

    def _notice_other_layers(self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> None:
        """Price layers that were added or replaced since, or refuse them where the blocks are others now."""
        if self._structure.changed():
            self.prices.forget()
            changed = self.chain.changed(self.prices.chain(self.prices.forward(inputs, keywords)))
            if changed:
                raise NoBlockChain(
                    f"the model's blocks are others than when this freezing was made (changed: {', '.join(changed)}): "
                    "call changed() before the next forward, or undo it"
                )
            self.refresh()

    def _note_output(self, module: nn.Module, args: Any, output: Any) -> None:
        noted = self._noted
        if noted.listening and self._graph is not None and torch.is_grad_enabled() and not tracing():
            self._graph.mark_outputs(noted.number, output_tensors(output))
