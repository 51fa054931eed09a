"""What augmentation costs beside a training step: CPU time of a batch of each, interleaved, on one thread.

    python benchmarks/augmentation.py [--model resnet32] [--batch 16] [--side 32] [--repeats 200] [--json]

CPU time (time.process_time) and interleaving keep other work on the machine out of the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from budgeted.models import build
from budgeted.problems.augment import Augmentation, Augmenter

CLASSES = 10
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def milliseconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return 1000 * (time.process_time() - start)


def measure(model_name: str, batch: int, side: int, repeats: int) -> dict[str, float | int | str]:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (batch, 3, side, side), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, CLASSES, batch))
    augmenter = Augmenter(Augmentation(), CIFAR10_MEAN, CIFAR10_STD, channels_last=True)
    inputs = augmenter(images, rng)
    model = build(model_name, classes=CLASSES, input_shape=(3, side, side))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def augment() -> None:
        augmenter(images, rng)

    for _ in range(3):
        step()
        augment()
    times = [(milliseconds(augment), milliseconds(step)) for _ in range(repeats)]
    augment_ms, step_ms = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "model": model_name,
        "batch": batch,
        "side": side,
        "repeats": repeats,
        "augment_ms": round(augment_ms, 3),
        "step_ms": round(step_ms, 3),
        "ratio": round(augment_ms / step_ms, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What augmentation costs beside a training step.")
    parser.add_argument("--model", default="resnet32", help="name of the trained network")
    parser.add_argument("--batch", type=int, default=16, help="images per batch")
    parser.add_argument("--side", type=int, default=32, help="height and width of the images")
    parser.add_argument("--repeats", type=int, default=200, help="timed batches of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments.model, arguments.batch, arguments.side, arguments.repeats)
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"augmentation {result['augment_ms']} ms, training step of {result['model']} {result['step_ms']} ms "
        f"(CPU time, batch {result['batch']} at {result['side']} px, median of {result['repeats']}): "
        f"{100 * float(result['ratio']):.2f} % of a step"
    )


if __name__ == "__main__":
    main()
