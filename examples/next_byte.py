"""A problem of your own that is not classification: the next byte of a text, for texts of three kinds.

budgeted run --problem FILE:NextByte --model FILE:reader --dataset FILE:texts --method er --stream disjoint
budgeted check examples/next_byte.py:NextByte
"""

from __future__ import annotations

import inspect
import json.decoder
import pydoc_data.topics

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.problems import Problem
from budgeted.replay import Column
from budgeted.streams import Dataset, from_arrays

LENGTH = 33


class NextByte(Problem):
    """Bytes in, bytes out: from each byte of a stretch the next one is told. The key is the kind of text."""

    def columns(self) -> tuple[Column, ...]:
        return (Column("sample", (1, 1, LENGTH), torch.uint8),)

    def inputs(self, samples: Tensor, generator: object = None) -> Tensor:
        return samples.flatten(1).long()

    def example(self, batch: int) -> Tensor:
        return torch.empty(batch, LENGTH, dtype=torch.long, device="meta")

    def loss(self, outputs: Tensor, inputs: Tensor, rows: Tensor) -> Tensor:
        return cross_entropy(outputs[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs[:, -1].argmax(-1)

    def small_model(self) -> nn.Module:
        return reader()

    def score(self, outputs: Tensor, inputs: Tensor, rows: Tensor) -> Tensor:
        return (outputs[:, :-1].argmax(-1) == inputs[:, 1:]).float().mean(1)


def reader() -> nn.Module:  # each byte alone, through two layers
    return nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 256))


def texts() -> Dataset:
    """Python's manual, its code, and numbers, cut into stretches."""
    kinds = str(pydoc_data.topics.topics), inspect.getsource(json.decoder), " ".join(map(str, range(4000)))
    parts = [np.frombuffer(text.encode()[: 200 * LENGTH], np.uint8).reshape(-1, 1, 1, LENGTH) for text in kinds]
    samples, labels = np.concatenate(parts), np.repeat(np.arange(3), [len(part) for part in parts])
    test = np.arange(len(labels)) % 5 == 0
    return from_arrays(samples[~test], labels[~test], samples[test], labels[test], layout="NCHW")
