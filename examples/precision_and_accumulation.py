"""bfloat16 autocast, a GradScaler, gradient accumulation, clipping and checkpointing, all with adaptive freezing.

python examples/precision_and_accumulation.py --steps 20
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from budgeted import AdaptiveFreezing


class Encoder(nn.Module):
    """A small encoder whose layers are checkpointed: their activations are computed again in the backward."""

    def __init__(self, words: int = 100, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        out: Tensor = self.head(x.mean(1))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.1)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        for part in range(4):  # four micro-batches make one optimizer step, and one decision
            tokens = torch.randint(0, 100, (8, 16), generator=generator)
            labels = tokens[:, 0] // 10
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model(tokens), labels) / 4
            freezing.backward(loss, scaler=scaler, more=part < 3)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 5 == 0:
            print(f"step {step}: loss {4 * loss.item():.3f}, frozen {', '.join(freezing.frozen_names) or 'nothing'}")
    print(freezing)


if __name__ == "__main__":
    main()
