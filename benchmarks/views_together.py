"""What does CCL-DC gain by running the four views of a batch through a network together?

    python benchmarks/views_together.py [--model cnn8] [--pixels 8] [--rounds 25]

CPU time of forward and backward of four batches of 16 one after the other; of one batch of 64 with batch norm of each
view by itself, as CCL-DC runs them; and of one batch of 64 with batch norm over all. They take turns, and the median
counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from budgeted import models
from budgeted.network.views import NormsApart

VIEWS, BATCH = 4, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn8")
    parser.add_argument("--pixels", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=25)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    shape = (3, chosen.pixels, chosen.pixels)
    model = models.build(chosen.model, classes=10, input_shape=shape, seed=0).to(memory_format=torch.channels_last)
    images = torch.randn(VIEWS * BATCH, *shape, generator=torch.Generator().manual_seed(0))
    ways: dict[str, tuple[AbstractContextManager[object], Sequence[Tensor]]] = {
        "apart": (nullcontext(), images.split(BATCH)),
        "together, norms apart": (NormsApart(VIEWS), (images,)),
        "together": (nullcontext(), (images,)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(chosen.rounds):
        for name, (norms, batches) in ways.items():
            began = time.thread_time()
            with norms:
                outputs = torch.cat([model(batch) for batch in batches])
            outputs.square().mean().backward()
            seconds[name].append(time.thread_time() - began)
    for name, spent in seconds.items():
        print(f"{VIEWS} views {name}: {1000 * statistics.median(spent):.1f} ms")


if __name__ == "__main__":
    main()
