"""Layer freezing in the user's own loop.

    freezing = AdaptiveFreezing(model, optimizer)
    ...
    loss = cross_entropy(model(images), labels)
    freezing.backward(loss)          # instead of loss.backward()
    optimizer.step()

The first training forward shows the shapes, and from them follow the chain of blocks and its prices; the loss's own
graph shows what the loss is. One decision is taken per optimizer step, however many backwards lead to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from budgeted.budget import (
    BlockPrices,
    Compute,
    Cost,
    Ledger,
    Rule,
    UnpricedOperator,
    UnpricedOperatorWarning,
    parse_compute,
)
from budgeted.budget.optimizer import OptimizerPrice
from budgeted.budget.pricing import Unpriced
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing import BlockChain, FreezingPolicy, FrozenStep, LayerFreezing
from budgeted.freezing import policy as policy_by_name
from budgeted.freezing.hooks import only_for
from budgeted.freezing.layer_freezing import BatchNormStatistics, LossForPrice
from budgeted.freezing.ranks import Ranks
from budgeted.freezing.units import Granularity
from budgeted.plugin.keywords import refuse_unknown
from budgeted.plugin.wrapped import inner_optimizer, unwrap

FORMAT = 1
Listener = Callable[[Sequence[nn.Parameter]], None]


class MissedBackwardWarning(UserWarning):
    """The optimizer steps, and no loss ever came to freezing: said once."""


class AdaptiveFreezing:
    """Decides in every optimizer step which blocks rest, and runs the backward without them."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        policy: FreezingPolicy | str = "adaptive",
        budget: str | Compute | Ledger | None = None,
        example: Tensor | Sequence[Any] | None = None,
        keywords: Mapping[str, Any] | None = None,
        loss: LossForPrice = "graph",
        granularity: Granularity = "block",
        always: Collection[str] = (),
        batch_norm: BatchNormStatistics = "update",
        criterion_rule: Rule = "real",
        unpriced: Unpriced = "refuse",
        distributed: bool | dist.ProcessGroup = False,
        **settings: Any,
    ) -> None:
        """
        model: any feed-forward module; it is not wrapped or changed.
        optimizer: its steps end a decision, and are priced. Without one every backward is a step of its own, unless it
            is called with `more=True`.
        policy: what to freeze, and when: a policy, or its name with `settings` for it, as in `policy="constant", n=4`.
        budget: compute that may be spent, as in "20GFLOP" (rule `real`) or "10GMAC" (rule `paper`), or a ledger.
        example: inputs like those of training, and `keywords`; without them the first training forward shows them.
        loss: from the model's output to a loss, to price it; `graph` reads it from the graph of every loss.
        distributed: True or a process group: this process is one of several that train the model, none of
            them in DistributedDataParallel. A model in DistributedDataParallel is noticed by itself.

        The others are those of `LayerFreezing`.
        """
        self.model, group = unwrap(model)
        refuse_unknown(AdaptiveFreezing, policy, settings)
        optimizer = inner_optimizer(optimizer)
        self.policy = policy_by_name(policy, **settings) if isinstance(policy, str) else policy
        self.ledger = budget if isinstance(budget, Ledger) else Ledger(_compute(budget))
        self.last: FrozenStep | None = None
        self._optimizer = optimizer
        self._ranks = self._find_ranks(group, distributed)
        self._options: dict[str, Any] = {
            "loss": loss,
            "optimizer_price": _price(optimizer, unpriced),
            "ledger": self.ledger,
            "granularity": granularity,
            "always": always,
            "batch_norm": batch_norm,
            "criterion_rule": criterion_rule,
            "unpriced": unpriced,
            "ranks": self._ranks,
        }
        self._engine: LayerFreezing | None = None
        self._saved: Mapping[str, Any] | None = None
        self._listeners: list[Listener] = []
        self._unreduced = self._removed = self._told = False
        self._shares, self._backwards = 0.0, 0
        self._handles: list[Any] = []
        if optimizer is not None:
            self._handles += [
                optimizer.register_step_pre_hook(self._stepping),
                optimizer.register_step_post_hook(self._stepped),
            ]
        if example is not None or keywords:
            inputs = (example,) if isinstance(example, Tensor) else tuple(example or ())
            self._build(inputs, keywords or {})
        else:
            self._first = self.model.register_forward_pre_hook(only_for(self.model, self._see_first), with_kwargs=True)
            self._handles.append(self._first)

    # -- the loop --------------------------------------------------------------------------------------------

    def backward(
        self,
        loss: Tensor,
        logits: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        scaler: torch.amp.GradScaler | None = None,
        more: bool = False,
    ) -> FrozenStep:
        """Instead of `loss.backward()`.

        The first backward of an optimizer step decides, those that follow before `optimizer.step()` freeze the same
        blocks, and the policy sees the sum of their gradients. `more=True` says that another one follows: it saves a
        look at the gradients, and their reduction over the ranks. It is needed only without an optimizer.

        With a GradScaler give the plain loss and `scaler=scaler`; the loss is scaled here, and `scaler.step(optimizer)`
        unscales the gradients as ever. `logits` and `targets` need not be given: the graph shows a plain cross-entropy.
        """
        self._refuse_if_removed()
        if self._engine is None:
            raise BudgetedError("backward() came without a training forward: call the model, then backward(loss)")
        waits = more or self._optimizer is not None
        step = self._engine.backward(
            loss, logits, targets, decided=self._decided, scaler=scaler, more=waits, look=not more
        )
        self._unreduced = more and self._ranks is not None
        self._shares += step.frozen_share
        self._backwards += 1
        self.last = step
        return step

    # -- what it tells ---------------------------------------------------------------------------------------

    @property
    def chain(self) -> BlockChain:
        """The blocks, stem first, head last."""
        return self.engine.chain

    @property
    def engine(self) -> LayerFreezing:
        """The `LayerFreezing` at work: there once the example or the first training forward has been seen."""
        if self._engine is None:
            self._refuse_if_removed()
            raise BudgetedError("the blocks are not known yet: run a training forward first, or give an example")
        return self._engine

    @property
    def frozen(self) -> frozenset[int]:
        """Blocks that rested in the last backward."""
        return frozenset() if self.last is None else self.last.frozen

    @property
    def frozen_names(self) -> tuple[str, ...]:
        """Their names, stem first."""
        return tuple(self.chain.blocks[block].name for block in sorted(self.frozen))

    @property
    def frozen_share(self) -> float:
        """Share of the backward that was not run (rule `real`), over all backwards."""
        return self._shares / self._backwards if self._backwards else 0.0

    @property
    def spent(self) -> Cost:
        """What was spent so far, under both rules."""
        return self.ledger.spent

    def price(self, inputs: Tensor | Sequence[Any], frozen: Sequence[int] = ()) -> BlockPrices:
        """What forward and backward of a batch like `inputs` cost, per block, with these blocks frozen."""
        return self.engine.price(inputs, frozen)

    @property
    def steps(self) -> int:
        """Optimizer steps that are over."""
        if self._engine is not None:
            return self._engine.step
        return 0 if self._saved is None else int(self._saved["step"])

    def __repr__(self) -> str:
        blocks = "blocks not known yet" if self._engine is None else f"{len(self.chain)} blocks"
        return (
            f"{type(self).__name__}({type(self.policy).__name__}, {blocks}, {self.steps} steps, "
            f"{self.frozen_share:.1%} of the backward not run, spent {self.spent})"
        )

    def on_decision(self, listener: Listener) -> None:
        """Tell `listener` the frozen parameters just before every backward."""
        self._listeners.append(listener)

    def changed(self, example: Tensor | Sequence[Any] | None = None, keywords: Mapping[str, Any] | None = None) -> None:
        """The model has other blocks now: go on with it as it is, after an optimizer step and before the next forward.

        Blocks that stay keep their averages. `example`: inputs as they are now; those of the start if not given.
        """
        if self._engine is not None:
            self._engine.changed(example, keywords)

    def remove(self) -> None:
        """Take every hook off the model and the optimizer: they are as they were, and this is of no more use."""
        self._removed = True
        for handle in self._handles:
            handle.remove()
        if self._engine is not None:
            self._engine.remove()

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint, beside those of model and optimizer; save it after `optimizer.step()`.

        Plain numbers; tensors too if the policy keeps any (EGERIA, PTLF).
        """
        return {
            "format": FORMAT,
            "freezing": self._saved if self._engine is None else self._engine.state_dict(),
            "ledger": self.ledger.state_dict(),
            "frozen_share": [self._shares, self._backwards],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the same decisions; settings are not saved, build it as it was."""
        if state.get("format") != FORMAT or not {"freezing", "ledger", "frozen_share"} <= set(state):
            raise BudgetedError("this is no saved state of AdaptiveFreezing: give what its state_dict() returned")
        if state["freezing"] is not None:
            if self._engine is not None:
                self._engine.load_state_dict(state["freezing"])
            else:
                self._saved = state["freezing"]
        self.ledger.load_state_dict(state["ledger"])
        self._shares, self._backwards = float(state["frozen_share"][0]), int(state["frozen_share"][1])

    # -- inside ----------------------------------------------------------------------------------------------

    def _see_first(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The first training forward: its inputs are the example."""
        if torch.is_grad_enabled() and not tracing():
            self._first.remove()
            engine = self._build(args, kwargs)
            engine.note_forward(module, args, kwargs)  # its own hook is too late for this one

    def _build(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> LayerFreezing:
        self._engine = LayerFreezing(self.model, self.policy, tuple(inputs), keywords=keywords, **self._options)
        if self._saved is not None:
            self._engine.load_state_dict(self._saved)
        return self._engine

    def _decided(self, frozen: Sequence[nn.Parameter]) -> None:
        for listener in self._listeners:
            listener(frozen)

    def _refuse_if_removed(self) -> None:
        if self._removed:
            raise BudgetedError(
                "this AdaptiveFreezing was removed from its model: make a new one, and load this one's state_dict() "
                "into it to go on"
            )

    def _stepping(self, *_: Any) -> None:
        if self._unreduced:
            raise BudgetedError(
                "optimizer.step() follows backward(more=True), so gradients were not averaged over the ranks: "
                "call the last backward of a step without more"
            )

    def _stepped(self, *_: Any) -> None:
        if self._engine is not None:
            if self._backwards == 0 and self._engine.waits_for_backward and not self._told:
                self._told = True
                warnings.warn(
                    "the optimizer stepped, but no loss ever came to AdaptiveFreezing: nothing is frozen or charged; "
                    "call freezing.backward(loss) in place of loss.backward() or accelerator.backward(loss)",
                    MissedBackwardWarning,
                    stacklevel=4,
                )
            self._engine.end_step()

    def _find_ranks(self, group: dist.ProcessGroup | None, distributed: bool | dist.ProcessGroup) -> Ranks | None:
        if group is not None:
            return Ranks(self.model, group)  # DistributedDataParallel has made the ranks alike
        if distributed is False:
            return None
        ranks = Ranks(self.model, None if distributed is True else distributed)
        ranks.start_alike(self.model)
        return ranks


def _price(optimizer: Optimizer | None, unpriced: Unpriced) -> OptimizerPrice | None:
    try:
        return None if optimizer is None else OptimizerPrice(optimizer)
    except UnpricedOperator as error:
        if unpriced == "refuse":
            raise
        warnings.warn(f"the optimizer is left out of the price: {error}", UnpricedOperatorWarning, stacklevel=3)
        return None


def _compute(budget: str | Compute | None) -> Compute | None:
    return parse_compute(budget) if isinstance(budget, str) else budget
