"""Samples put together and taken apart, whether a sample is one tensor or several by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from budgeted.replay import Column

Sample: TypeAlias = Tensor | Mapping[str, Tensor]
"""One sample, or a batch of them: a tensor, or several by name."""


def stacked(samples: Sequence[Sample], columns: Sequence[Column] = ()) -> Sample:
    """Single samples as a batch; of none, an empty batch with these columns."""
    if not samples:
        empty = {column.name: torch.empty(0, *column.shape, dtype=column.dtype) for column in columns}
        return empty if len(empty) > 1 else next(iter(empty.values()))
    first = samples[0]
    if isinstance(first, Tensor):
        return torch.stack(list(samples))  # type: ignore[arg-type]
    return {name: torch.stack([dict(sample)[name] for sample in samples]) for name in first}


def joined(batches: Sequence[Any]) -> Any:
    """Batches one behind the other."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {name: joined([batch[name] for batch in batches]) for name in first}
    if isinstance(first, Tensor):
        return first if len(batches) == 1 else torch.cat(list(batches))
    return [each for batch in batches for each in batch]


def at(samples: Sample, places: Any) -> Sample:
    """Some of a batch, or the one at a place."""
    if isinstance(samples, Tensor):
        return samples[places]
    return {name: tensor[places] for name, tensor in samples.items()}


def length(samples: Sample) -> int:
    return len(samples if isinstance(samples, Tensor) else next(iter(samples.values())))
