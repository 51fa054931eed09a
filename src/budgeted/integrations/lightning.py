"""Layer freezing inside Lightning's Trainer.

    freezing = FreezingCallback("adaptive")
    trainer = lightning.Trainer(callbacks=[freezing], ...)
    trainer.fit(module, data)

Lightning runs its backward through the module's own `backward`. While it fits, that one method is replaced on that one
object; neither its class nor the Trainer is changed. One decision is taken per optimizer step, however many batches are
accumulated for it. The state goes into Lightning's own checkpoints, and training resumes exactly.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from budgeted.budget import BudgetSpent, Compute, Cost, Ledger, parse_compute
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing import BlockChain, FreezingPolicy, LayerFreezing
from budgeted.freezing import policy as policy_by_name

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError as missing:
    raise BudgetedError("freezing in Lightning needs lightning: pip install 'budgeted[lightning]'") from missing

log = logging.getLogger("budgeted")


class FreezingCallback(Callback):
    """Decides in every optimizer step which blocks rest, runs the backward without them, charges, logs and saves."""

    def __init__(
        self,
        policy: FreezingPolicy | str = "adaptive",
        *,
        module: str = "",
        budget: Compute | str | None = None,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """
        policy: what to freeze, and when: a policy, or its name with `settings`, as in `"constant", n=4`.
        module: path of what `training_step` calls, such as `net`; the Lightning module itself if not given.
        budget: compute after which fitting stops, as in "20TFLOP" (rule `real`) or "10TMAC" (rule `paper`).
        options: of `LayerFreezing`, such as granularity, always, batch_norm or unpriced.
        """
        if settings and not isinstance(policy, str):
            raise BudgetedError(
                f"{', '.join(settings)}: settings go with a policy's name; this policy is built already"
            )
        self._policy = policy_by_name(policy, **settings) if isinstance(policy, str) else policy
        self._path, self._options = module, dict(options or {})
        self._compute = parse_compute(budget) if isinstance(budget, str) else budget
        self.ledger = Ledger(self._compute)
        self.budget_spent = False
        self._engine: LayerFreezing | None = None
        self._saved: Mapping[str, Any] | None = None
        self._shares, self._backwards = 0.0, 0
        self._handles: list[Any] = []
        self._fitted: tuple[Trainer, LightningModule] | None = None

    # -- what it tells -----------------------------------------------------------------------------------------

    @property
    def spent(self) -> Cost:
        """What this training spent so far, sittings before a resume included."""
        return self.ledger.spent

    @property
    def frozen_share(self) -> float:
        """Share of the backward that was not run (rule `real`), over all backwards."""
        return self._shares / self._backwards if self._backwards else 0.0

    @property
    def engine(self) -> LayerFreezing:
        """The `LayerFreezing` at work: there once the first batch has been seen."""
        if self._engine is None:
            raise BudgetedError(
                "the blocks are not known yet: they are found when training_step calls "
                + (
                    f"{self._path!r}"
                    if self._path
                    else "the module itself; if it calls another, give module='ITS NAME'"
                )
            )
        return self._engine

    @property
    def chain(self) -> BlockChain:
        """The blocks, stem first, head last."""
        return self.engine.chain

    # -- what Lightning calls ----------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._refuse_what_is_not_covered(trainer, pl_module)
        self._release()
        self.ledger, self.budget_spent = Ledger(self._compute), False
        self._shares, self._backwards = 0.0, 0
        if self._saved is not None:
            self.ledger.load_state_dict(self._saved["ledger"])
            self._shares, self._backwards = float(self._saved["shares"]), int(self._saved["backwards"])
        self._fitted = (trainer, pl_module)
        called = self._called(pl_module)
        self._handles = [
            called.register_forward_pre_hook(self._see_first, with_kwargs=True),
            trainer.optimizers[0].register_step_post_hook(self._stepped),
        ]
        vars(pl_module)["backward"] = self._backward

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pl_module.log_dict(
            {
                "spent_mac": float(self.spent.paper),
                "spent_flop": float(self.spent.real),
                "frozen_share": self.frozen_share,
            }
        )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        if self._engine is None:
            return dict(self._saved or {})
        return {
            "freezing": self._engine.state_dict(),
            "ledger": self.ledger.state_dict(),
            "shares": self._shares,
            "backwards": self._backwards,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict or None

    # -- inside ------------------------------------------------------------------------------------------------

    def _called(self, pl_module: LightningModule) -> nn.Module:
        try:
            return pl_module.get_submodule(self._path)
        except AttributeError:
            raise BudgetedError(
                f"{type(pl_module).__name__} has no module {self._path!r}: give the path of what training_step calls"
            ) from None

    def _see_first(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The first training forward: its inputs show the shapes."""
        if not module.training or tracing() or self._fitted is None:
            return
        self._handles.pop(0).remove()
        self._engine = LayerFreezing(
            module,
            copy.deepcopy(self._policy),  # another fit() starts as this one did
            args,
            keywords=kwargs,
            loss="graph",
            optimizer=self._fitted[0].optimizers[0],
            ledger=self.ledger,
            **self._options,
        )
        if self._saved is not None:
            self._engine.load_state_dict(self._saved["freezing"])
            self._saved = None
        self._engine.note_forward(module, args, kwargs)  # its own hook is too late for this one

    def _backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """In place of the module's."""
        assert self._fitted is not None
        if self.budget_spent:  # a later batch of the step that could not be paid
            return
        try:
            step = self.engine.backward(loss, more=True)  # until the optimizer has stepped
        except BudgetSpent as error:
            trainer, module = self._fitted
            self.budget_spent = trainer.should_stop = True
            module.zero_grad()  # so that the optimizer moves nothing in this step
            log.warning("fitting stops in step %d: %s", trainer.global_step, error)
            return
        self._shares += step.frozen_share
        self._backwards += 1

    def _stepped(self, *_: Any) -> None:
        if self._engine is not None:
            self._engine.end_step()

    def _refuse_what_is_not_covered(self, trainer: Trainer, module: LightningModule) -> None:
        for what, present in (
            ("training over processes", trainer.world_size > 1),
            ("manual optimization: call LayerFreezing or AdaptiveFreezing in your training_step",
             not module.automatic_optimization),
            ("several optimizers", len(trainer.optimizers) != 1),
            ("a gradient scaler (16-mixed): use bf16-mixed",
             getattr(trainer.precision_plugin, "scaler", None) is not None),
        ):  # fmt: skip
            if present:
                raise BudgetedError(f"freezing in Lightning does not cover {what}")

    def _release(self) -> None:
        """The module's own backward again, and no hook of ours."""
        if self._fitted is not None:
            vars(self._fitted[1]).pop("backward", None)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._engine is not None:
            self._saved = None
            self._engine.remove()
        self._fitted = None
