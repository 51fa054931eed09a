"""What folding batch norm into the convolutions saves an evaluation, in CPU time on one thread.

    python benchmarks/folded.py [--model resnet32] [--rounds 5]

Both kinds take turns on the same batches of 256 images; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext

import torch

from budgeted import models
from budgeted.network.folding import folded

BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = models.build(chosen.model, classes=10, input_shape=(3, 32, 32)).eval()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.rand(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)

    def seconds(lower: bool, fold: bool) -> float:
        """For 10,000 images; without folding itself, which is done once for all of them."""
        with (
            torch.no_grad(),
            torch.autocast("cpu", torch.bfloat16, enabled=lower),
            folded(model) if fold else nullcontext(),
        ):
            begin = time.process_time()
            model(images)
            return (time.process_time() - begin) * 10_000 / BATCH

    for lower in (False, True):
        seconds(lower, True), seconds(lower, False)
        rounds = [(seconds(lower, False), seconds(lower, True)) for _ in range(chosen.rounds)]
        plain, ours = (statistics.median(times) for times in zip(*rounds, strict=True))
        kind = "bfloat16" if lower else "float32"
        print(f"{chosen.model}, {kind}, 10,000 images: {plain:.1f} s, folded {ours:.1f} s, ratio {ours / plain:.2f}")


if __name__ == "__main__":
    main()
