"""Adaptive freezing in two processes on one machine: gradients averaged by the plug-in, one decision for both.

python examples/two_processes.py --steps 20
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from budgeted import AdaptiveFreezing


def work(rank: int, folder: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.1)  # the plug-in reduces from here on
    generator = torch.Generator().manual_seed(rank)  # every rank has data of its own
    for _ in range(steps):
        inputs = torch.randn(32, 20, generator=generator)
        optimizer.zero_grad()
        freezing.backward(cross_entropy(model(inputs), inputs[:, :4].argmax(1)))
        optimizer.step()
    print(
        f"rank {rank}: sum of weights {sum(float(p.detach().sum()) for p in model.parameters()):.6f}, {freezing}",
        flush=True,
    )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, args=(folder, arguments.steps), nprocs=2)


if __name__ == "__main__":
    main()
