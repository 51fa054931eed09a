"""Layer freezing inside the Hugging Face Trainer.

    trainer = Trainer(model, arguments, train_dataset=data)
    freezing = freeze_in(trainer, "adaptive")
    trainer.train()

The Trainer runs its backward through its accelerator. While it trains, that one method is replaced on that one object;
neither the Trainer's class nor the model is changed. One decision is taken per optimizer step, however many batches
are accumulated for it. The state goes into the Trainer's own checkpoints, and training resumes exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from budgeted.budget import BudgetSpent, Compute
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing import FreezingPolicy
from budgeted.integrations.at_work import FreezingAtWork, log

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as missing:
    raise BudgetedError(
        "freezing in a Trainer needs transformers and accelerate: pip install 'budgeted[transformers]'"
    ) from missing

KEY = "budgeted.freezing"  # of the state in trainer_state.json


def freeze_in(
    trainer: Trainer,
    policy: FreezingPolicy | str = "adaptive",
    *,
    budget: Compute | str | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TrainerFreezing:
    """Freeze blocks in every step of `trainer.train()`.

    policy: what to freeze, and when: a policy, or its name with `settings`, as in `"constant", n=4`.
    budget: compute after which training stops, as in "20TFLOP" (rule `real`) or "10TMAC" (rule `paper`).
    options: of `LayerFreezing`, such as granularity, batch_norm or unpriced.
    """
    callbacks = trainer.callback_handler.callbacks
    if any(isinstance(callback, TrainerFreezing) for callback in callbacks):
        raise BudgetedError("this Trainer freezes already: call remove() on the first before another freeze_in()")
    freezing = TrainerFreezing(trainer, policy, budget, options, settings)
    callbacks.insert(0, freezing)  # before those that print or send the logs, so that they see what is added
    return freezing


class TrainerFreezing(FreezingAtWork, TrainerCallback):
    """What `freeze_in` puts into a Trainer: decides, runs the backward, charges, logs and saves."""

    unseen = "the blocks are not known yet: they are found with the first batch of train()"

    def __init__(
        self,
        trainer: Trainer,
        policy: FreezingPolicy | str,
        budget: Compute | str | None,
        options: Mapping[str, Any] | None,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(policy, budget, options, settings)
        self.trainer = trainer

    def remove(self) -> None:
        """Take everything out of the Trainer and off the model."""
        self._release()
        self._take_hooks_off()
        self._engine = None
        self.trainer.callback_handler.callbacks.remove(self)

    # -- what the Trainer calls ----------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._refuse_what_is_not_covered(args)
        self._take_hooks_off()
        self._engine = None
        self._begin(_states(state).get(KEY))
        if self._saved is None and state.global_step:
            log.warning(
                "the checkpoint was made without freezing: its averages start anew in step %d", state.global_step
            )
        self._handles.append(self._model.register_forward_pre_hook(self._see_first, with_kwargs=True))
        self.trainer.accelerator.backward = self._backward

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.engine.end_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # before the Trainer saves, if it does in this step
        _states(state)[KEY] = self._state(self.engine.written()[0])
        if self.budget_spent:
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        found = self._told()
        if logs is not None and "loss" in logs:  # of training, not of an evaluation
            logs.update(found)
            if state.log_history:
                state.log_history[-1].update(found)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._release()

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _model(self) -> nn.Module:
        model = self.trainer.model
        assert isinstance(model, nn.Module)
        return model

    def _see_first(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The first training forward: its inputs show the shapes."""
        if not module.training or tracing():
            return
        self._handles.pop().remove()
        optimizer = self.trainer.optimizer
        with _own_forward(module):
            # the optimizer inside the accelerator's wrapper
            engine = self._attach(module, args, kwargs, getattr(optimizer, "optimizer", optimizer))
        if engine.written()[1] and self.trainer.args.save_strategy != "no":
            raise BudgetedError(
                f"{type(self._policy).__name__} keeps tensors, which a checkpoint of the Trainer does not hold: choose "
                'another policy, or save_strategy="no"'
            )
        self._go_on(module, args, kwargs)

    def _backward(self, loss: Tensor, **kwargs: Any) -> None:
        """In place of the accelerator's."""
        accelerator = self.trainer.accelerator
        if kwargs:
            raise BudgetedError(
                f"the Trainer's backward got {', '.join(kwargs)}: freezing does not cover this optimizer"
            )
        if self.budget_spent:  # a later batch of the step that could not be paid
            return
        if self.trainer.state.max_steps > 0:
            self.engine.share = self.trainer.state.global_step / self.trainer.state.max_steps
        try:
            with _own_forward(self._model):
                step = self.engine.backward(
                    loss / accelerator.gradient_accumulation_steps,
                    scaler=accelerator.scaler,
                    more=True,  # until the optimizer has stepped
                    look=accelerator.sync_gradients,
                )
        except BudgetSpent as error:
            self._stop(self._model, self.trainer.state.global_step, error)
            return
        self._shares += step.frozen_share
        self._backwards += 1

    def _refuse_what_is_not_covered(self, args: TrainingArguments) -> None:
        accelerator = self.trainer.accelerator
        for what, present in (
            (f"training over processes ({accelerator.distributed_type.value})",
             accelerator.distributed_type.value != "NO"),
            ("several GPUs in one process (n_gpu)", args.n_gpu > 1),
            ("torch_compile", args.torch_compile),
        ):  # fmt: skip
            if present:
                raise BudgetedError(f"freezing in a Trainer does not cover {what}: train without it")

    def _release(self) -> None:
        """The accelerator's own backward again."""
        vars(self.trainer.accelerator).pop("backward", None)


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """The model's own forward, for whatever is traced inside.

    For mixed precision accelerate gives the model a forward that is bound to this very object; a trace, which runs a
    stand-in, would run the model itself. Prices do not depend on the precision.
    """
    patched = vars(model).pop("forward", None)
    try:
        yield
    finally:
        if patched is not None:
            vars(model)["forward"] = patched


def _states(state: TrainerState) -> dict[str, Any]:
    """What the Trainer writes into trainer_state.json for its callbacks, by name."""
    states: Any = state.stateful_callbacks
    assert isinstance(states, dict)
    return states
