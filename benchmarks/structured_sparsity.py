"""What sparsity saves on a processor: seconds of a training step, masked and compacted, over those of a dense one.

Three ways to run a row of convolutions of which a quarter of the weights is active:

masked      SparCL's masks, dense kernels: zeros are multiplied like anything else
csr         the same masks as sparse matrices over unfolded inputs, forward alone (torch has no more of it)
compacted   half of the channels are active, which is a quarter of the weights: a smaller dense convolution

Dense and other steps take turns, so that whatever else the machine does falls on both; the median of the ratios counts.
Before anything is timed, the compacted row is checked to give what the masked one gives.

    python benchmarks/structured_sparsity.py [--repeats 30]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, KEPT = 16, 0.25
ROWS = ((16, 32), (32, 16), (64, 8), (64, 32))  # channels, pixels: the three stages of ResNet-32, and a wider one


def row(channels: int) -> nn.Sequential:
    """Three convolutions in the middle of a network."""
    layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(3)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


def convolutions(of: nn.Sequential) -> list[nn.Conv2d]:
    return [layer for layer in of if isinstance(layer, nn.Conv2d)]


@torch.no_grad()
def masked_by_channel(of: nn.Sequential, kept: Tensor) -> nn.Sequential:
    """The same with all weights of other channels at 0."""
    made = row(convolutions(of)[0].in_channels)
    for mine, theirs in zip(convolutions(made), convolutions(of), strict=True):
        mask = torch.zeros_like(theirs.weight)
        mask[kept[:, None], kept] = 1
        mine.weight.copy_(theirs.weight * mask)
    return made


@torch.no_grad()
def compacted(of: nn.Sequential, kept: Tensor) -> nn.Sequential:
    """The channels that are kept as a row of their own."""
    made = row(len(kept))
    for mine, theirs in zip(convolutions(made), convolutions(of), strict=True):
        mine.weight.copy_(theirs.weight[kept][:, kept])
    return made


@torch.no_grad()
def masked_anywhere(of: nn.Sequential) -> nn.Sequential:
    """A quarter of the weights, the largest, wherever they are."""
    made = row(convolutions(of)[0].in_channels)
    for mine, theirs in zip(convolutions(made), convolutions(of), strict=True):
        threshold = theirs.weight.abs().flatten().kthvalue(round((1 - KEPT) * theirs.weight.numel())).values
        mine.weight.copy_(theirs.weight * (theirs.weight.abs() > threshold))
    return made


def training(of: nn.Sequential, inputs: Tensor) -> Callable[[], None]:
    def step() -> None:
        of.zero_grad()
        of(inputs).square().mean().backward()

    return step


def forward(of: nn.Sequential, inputs: Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            of(inputs)

    return step


def by_sparse_matrices(of: nn.Sequential, inputs: Tensor) -> Callable[[], None]:
    matrices = [layer.weight.detach().flatten(1).to_sparse_csr() for layer in convolutions(of)]

    def step() -> None:
        with torch.no_grad():
            found = inputs
            for matrix in matrices:
                columns = F.unfold(found, 3, padding=1).transpose(0, 1).flatten(1)
                found = (matrix @ columns).view(len(matrix), len(inputs), *inputs.shape[2:]).transpose(0, 1).relu()

    return step


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def ratio(step: Callable[[], None], dense: Callable[[], None], repeats: int) -> float:
    for each in (step, dense) * 3:
        each()
    return statistics.median(seconds(step) / seconds(dense) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| channels | pixels | masked, step | csr, forward | compacted, step | multiply-adds compacted |")
    print("| --- | --- | --- | --- | --- | --- |")
    for channels, pixels in ROWS:
        dense, inputs = row(channels), torch.randn(BATCH, channels, pixels, pixels)
        kept = torch.randperm(channels)[: channels // 2].sort().values
        few, sparse = compacted(dense, kept), masked_anywhere(dense)
        some = inputs[:, kept].contiguous()
        same = torch.allclose(masked_by_channel(dense, kept)(inputs)[:, kept], few(some), rtol=1e-3, atol=1e-6)
        assert same, "the compacted row is another function"
        cells = (
            ratio(training(sparse, inputs), training(dense, inputs), repeats),
            ratio(by_sparse_matrices(sparse, inputs), forward(dense, inputs), repeats),
            ratio(training(few, some), training(dense, inputs), repeats),
        )
        shares = " | ".join(f"{cell:.2f}" for cell in cells)
        print(f"| {channels} | {pixels} x {pixels} | {shares} | {KEPT:.2f} |", flush=True)


if __name__ == "__main__":
    main()
