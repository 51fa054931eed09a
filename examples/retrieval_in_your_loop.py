"""Similarity-aware retrieval with adaptive freezing on a stream of digits, one class after another.

python examples/retrieval_in_your_loop.py --samples 1500
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from budgeted import AdaptiveFreezing, ReplayMemory, SimilarityAwareRetrieval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1500, help="how much of the stream to read, at most 1500")
    arguments = parser.parse_args()
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    order = labels[:1500].sort(stable=True).indices  # the stream brings the zeros first, then the ones, ...
    order = order[torch.linspace(0, 1499, arguments.samples).long()]

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    freezing = AdaptiveFreezing(model, optimizer)
    memory = ReplayMemory(slots=300, classes=10)
    retrieval = SimilarityAwareRetrieval(model, memory, freezing=freezing, fraction=0.01)
    for arrived in order.split(4):
        memory.add(images[arrived], labels[arrived])
        replayed, targets = retrieval.draw(16)
        optimizer.zero_grad()
        freezing.backward(cross_entropy(model(replayed), targets))
        retrieval.update()
        optimizer.step()

    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    print(freezing)
    for purpose, cost in freezing.ledger.spent_on.items():
        print(f"{purpose:20} {cost}")
    print(f"{len(memory)} samples in {memory.nbytes()} bytes; accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
