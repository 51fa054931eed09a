"""Adaptive layer freezing in a plain PyTorch loop, with a checkpoint that resumes exactly.

python examples/freezing_in_your_loop.py --epochs 2
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted import AdaptiveFreezing


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def epoch(
    images: Tensor,
    labels: Tensor,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    freezing: AdaptiveFreezing,
    number: int,
) -> None:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(number))
    for batch in order.split(16):
        optimizer.zero_grad()
        loss = cross_entropy(model(images[batch]), labels[batch])
        freezing.backward(loss)  # instead of loss.backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    freezing = AdaptiveFreezing(model, optimizer)
    for number in range(arguments.epochs):
        epoch(images[:1500], labels[:1500], model, optimizer, freezing, number)
        print(f"epoch {number + 1}: {freezing}")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.pt"
        torch.save([part.state_dict() for part in (model, optimizer, freezing)], file)
        other = build()
        again = torch.optim.Adam(other.parameters(), lr=1e-3)
        resumed = AdaptiveFreezing(other, again)
        weights, moments, decisions = torch.load(file, weights_only=True)
        other.load_state_dict(weights)
        again.load_state_dict(moments)
        resumed.load_state_dict(decisions)
    epoch(images[:1500], labels[:1500], model, optimizer, freezing, arguments.epochs)
    epoch(images[:1500], labels[:1500], other, again, resumed, arguments.epochs)
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    print("an epoch after the checkpoint, weights are", "bit for bit the same" if same else "different")
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    print(f"accuracy on {len(labels) - 1500} held-out digits: {accuracy:.1%}")


if __name__ == "__main__":
    main()
