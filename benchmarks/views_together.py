"""What would CCL-DC gain if the four views of a batch were run through a network together?

    python benchmarks/views_together.py [--model cnn8] [--rounds 25]

CPU time of forward and backward of four batches of 16 one after the other, as CCL-DC runs them since batch norm is of
one view, and of one batch of 64; they take turns, and the median counts. Beside it, whether a convolution gives the
same bits either way: its outputs, and the gradient of its weights, which is summed in another order.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from budgeted import models

VIEWS, BATCH, SHAPE = 4, 16, (1, 8, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn8")
    parser.add_argument("--rounds", type=int, default=25)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = models.build(chosen.model, classes=10, input_shape=SHAPE, seed=0).to(memory_format=torch.channels_last)
    images = torch.randn(VIEWS * BATCH, *SHAPE, generator=torch.Generator().manual_seed(0))
    seconds: dict[str, list[float]] = {"apart": [], "together": []}
    for _ in range(chosen.rounds):
        for name, batches in (("apart", images.split(BATCH)), ("together", (images,))):
            began = time.thread_time()
            torch.stack([model(batch).square().mean() for batch in batches]).sum().backward()
            seconds[name].append(time.thread_time() - began)
    for name, spent in seconds.items():
        print(f"{VIEWS} views {name}: {1000 * statistics.median(spent):.1f} ms")
    outputs, gradients = same_bits(model)
    print(f"a convolution's outputs are the same bits: {outputs}; the gradient of its weights: {gradients}")


def same_bits(model: nn.Module) -> tuple[bool, bool]:
    """Of the model's second convolution, together and apart."""
    layer = [module for module in model.modules() if isinstance(module, nn.Conv2d)][1]
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(VIEWS * BATCH, layer.in_channels, *SHAPE[1:], generator=generator)
    given = given.to(memory_format=torch.channels_last)
    together, apart = layer(given), torch.cat([layer(part) for part in given.split(BATCH)])
    weighing = torch.randn(together.shape, generator=generator)
    gradients: list[Tensor] = [torch.autograd.grad(each, layer.weight, weighing)[0] for each in (together, apart)]
    return torch.equal(together, apart), torch.equal(*gradients)


if __name__ == "__main__":
    main()
