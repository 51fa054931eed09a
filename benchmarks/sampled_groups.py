"""Do sampled cosines suffer when the sampled weights are drawn in groups? Against the cosines of whole gradients.

A ResNet-32 is trained for a few steps on real CIFAR-10; then the per-sample gradients of one more batch are collected
whole. For each size of a group, many draws of 0.05 % of the weights give cosines between the samples, which are held
against those of the whole gradients: mean correlation over the draws, its spread, and the error.

    python benchmarks/sampled_groups.py --data FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from budgeted import models, streams
from budgeted.network.sampled_gradients import SampledGradients

BATCH, HELD = 16, 48


def cosines(rows: Tensor) -> Tensor:
    """Between all pairs of samples."""
    unit = normalize(rows, dim=1)
    above = torch.triu_indices(len(rows), len(rows), 1)
    return (unit @ unit.T)[above[0], above[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    parser.add_argument("--steps", type=int, default=300, help="steps of training before")
    parser.add_argument("--draws", type=int, default=100, help="draws for each size of a group")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    data = streams.load("cifar10", arguments.data)
    images = torch.from_numpy(np.ascontiguousarray(data.train_images[:5048])).float().div_(255).sub_(0.47).div_(0.25)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.as_tensor(np.asarray(data.train_labels[:5048])).long()
    model = models.build("resnet32", classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for _ in range(arguments.steps):
        drawn = torch.randint(0, 5000, (BATCH,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(images[drawn]), labels[drawn]).backward()
        optimizer.step()

    with SampledGradients(model, fraction=1.0, exclude=["head"]) as whole:
        cross_entropy(model(images[-HELD:]), labels[-HELD:]).backward()
        gradients = whole.take().values
    column = {coordinate: number for number, coordinate in enumerate(whole.coordinates)}
    truth = cosines(gradients)
    print("| group | layers | correlation | its sd | error |\n|---|---|---|---|---|")
    for group in (1, 4, 16, 32, 64):
        layers, correlation, error = [], [], []
        for seed in range(arguments.draws):
            sampled = SampledGradients(model, group=group, seed=seed, exclude=["head"])
            found = cosines(gradients[:, [column[coordinate] for coordinate in sampled.coordinates]])
            layers.append(len({name.rpartition(".")[0] for name, _ in sampled.coordinates}))
            correlation.append(float(np.corrcoef(found, truth)[0, 1]))
            error.append(float((found - truth).square().mean().sqrt()))
        print(f"| {group} | {np.mean(layers):.1f} | {np.mean(correlation):.3f} | ", end="")
        print(f"{np.std(correlation, ddof=1):.3f} | {np.mean(error):.3f} |")


if __name__ == "__main__":
    main()
