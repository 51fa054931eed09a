"""The tiny LLaVA with adapters in a Trainer: accumulation, padding, checkpointing, inputs that require gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from budgeted.audit import ExecutedOnData
from budgeted.freezing import ConstantPrefix
from budgeted.integrations.trainer import freeze_in
from budgeted.models.llava_lora import PROJECTOR
from tests.multimodal.small import adapted, batch, world


@pytest.mark.parametrize("always", [(), (PROJECTOR,)], ids=["prefix", "projector always"])
def test_charged_as_executed(tmp_path: Path, always: tuple[str, ...]) -> None:
    _, items, _ = world()
    model = adapted()
    arguments = TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=3, gradient_accumulation_steps=2,
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False},
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
        logging_strategy="no", optim_args="foreach=False",
    )  # fmt: skip
    chosen: Any = [items[i] for i in (0, 30, 1, 31, 2, 32, 3, 33, 4, 34, 5, 35)]
    trainer = Trainer(model, arguments, train_dataset=chosen, data_collator=lambda rows: batch(tuple(rows)))
    freezing = freeze_in(trainer, ConstantPrefix(9), options={"always": always})
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.random.fork_rng(), ExecutedOnData() as executed:
        trainer.train()
    assert freezing.spent.real == pytest.approx(executed.total, rel=0.01)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert {name.split("language_model.layers.")[1][0] for name in moved if "lora" in name} == set("2345")
    assert any(PROJECTOR in name for name in moved) == bool(always)
