"""Fine-tune a small vision transformer with the Hugging Face Trainer, plainly and with adaptive freezing.

The network first learns the handwritten digits 0 to 4 from scratch. From there it is fine-tuned to 5 to 9, once by the
plain Trainer and once with freezing: the loss curves stand side by side, with the compute executed and CPU seconds.

    python examples/trainer.py
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from transformers import PrinterCallback, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from budgeted.budget import format_compute
from budgeted.freezing import AdaptivePrefix, NeverFreeze
from budgeted.integrations.trainer import TrainerFreezing, freeze_in


def digits(low: int, high: int) -> list[dict[str, Any]]:
    """The images of some classes, labelled from 0."""
    found = load_digits()
    chosen = (found.target >= low) & (found.target <= high)
    images = torch.tensor(found.images[chosen] / 8 - 1, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(found.target[chosen] - low)
    return [{"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)]


def trainer_of(model: ViTForImageClassification, data: list[dict[str, Any]], steps: int, folder: str) -> Trainer:
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=5e-4,
        logging_steps=max(1, steps // 6),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
        log_level="error",
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    return trainer


def trained(trainer: Trainer) -> tuple[list[float], float]:
    """The loss curve and the CPU seconds."""
    start = time.process_time()
    trainer.train()
    seconds = time.process_time() - start
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], seconds


def show(name: str, curve: list[float], seconds: float, freezing: TrainerFreezing) -> None:
    losses = "  ".join(f"{loss:.3f}" for loss in curve)
    spent = format_compute(freezing.spent.real, "real", 3)
    print(f"{name:>9}: loss {losses}   {spent}, {seconds:.1f} s, {freezing.frozen_share:.0%} of the backward not run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of each fine-tuning")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config: dict[str, Any] = {
        "image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 5,
        "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512,
    }  # fmt: skip
    model = ViTForImageClassification(ViTConfig(**config))
    with tempfile.TemporaryDirectory() as folder:
        trained(trainer_of(model, digits(0, 4), 2 * steps, folder))
        for name, policy in (
            ("plain", NeverFreeze()),  # the plain Trainer, with its compute counted
            ("freezing", AdaptivePrefix(ema=0.1, ema_start="corrected")),
        ):
            trainer = trainer_of(copy.deepcopy(model), digits(5, 9), steps, folder)
            freezing = freeze_in(trainer, policy)
            show(name, *trained(trainer), freezing)


if __name__ == "__main__":
    main()
