"""Layer freezing inside Lightning's Trainer.

    freezing = FreezingCallback("adaptive")
    trainer = lightning.Trainer(callbacks=[freezing], ...)
    trainer.fit(module, data)

Lightning runs its backward through the module's own `backward`. While it fits, that one method is replaced on that one
object; neither its class nor the Trainer is changed. One decision is taken per optimizer step, however many batches are
accumulated for it. The state goes into Lightning's own checkpoints, and training resumes exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from budgeted.budget import BudgetSpent, Compute
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing import FreezingPolicy
from budgeted.integrations.at_work import FreezingAtWork

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError as missing:
    raise BudgetedError("freezing in Lightning needs lightning: pip install 'budgeted[lightning]'") from missing


class FreezingCallback(FreezingAtWork, Callback):
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
        super().__init__(policy, budget, options, settings)
        called = f"{module!r}" if module else "the module itself; if it calls another, give module='ITS NAME'"
        self.unseen = f"the blocks are not known yet: they are found when training_step calls {called}"
        self._path = module
        self._fitted: tuple[Trainer, LightningModule] | None = None

    # -- what Lightning calls ----------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._refuse_what_is_not_covered(trainer, pl_module)
        self._release()
        self._begin(self._saved)
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
        pl_module.log_dict(self._told())

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        if self._engine is None:
            return dict(self._saved or {})
        return self._state(self._engine.state_dict())

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
        self._attach(module, args, kwargs, self._fitted[0].optimizers[0])
        self._go_on(module, args, kwargs)
        self._saved = None

    def _backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """In place of the module's."""
        assert self._fitted is not None
        if self.budget_spent:  # a later batch of the step that could not be paid
            return
        try:
            step = self.engine.backward(loss, more=True)  # until the optimizer has stepped
        except BudgetSpent as error:
            trainer, module = self._fitted
            trainer.should_stop = True
            self._stop(module, trainer.global_step, error)
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
        if self._engine is not None:
            self._saved = None
        self._take_hooks_off()
        self._fitted = None
