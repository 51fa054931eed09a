"""Tensors without data that are plain to see: while tracing they are made at once, instead of by torch's long way.

Run on tensors without data, batch norm is taken apart into a dozen operators whose results nobody needs; of a trace of
a ResNet that was two thirds of the time. Of what was left, half went to asking of every weight and statistic whether it
is a view, sparse, named or nested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

Outputs = Tensor | tuple[Tensor, ...]


def fake_like(tensor: Tensor, mode: FakeTensorMode, requires_grad: bool = False) -> FakeTensor:
    """A plain tensor without its data, laid out as it is."""
    with no_dispatch():
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, empty, tensor.device, requires_grad=requires_grad)


def shortcut(name: str, arguments: tuple[Any, ...]) -> Callable[..., Outputs] | None:
    """What makes the outputs of this call, if there is a shorter way than the call; where there are data, there is
    none."""
    if not arguments or not isinstance(arguments[0], FakeTensor):
        return None
    if name == "relu_":
        return _itself
    if name == "native_batch_norm" and len(arguments) == 8 and arguments[5]:
        return _trained_batch_norm
    return None


def _itself(tensor: FakeTensor) -> Outputs:
    return tensor


def _trained_batch_norm(images: FakeTensor, weight: Tensor | None, bias: Tensor | None, *_: Any) -> Outputs:
    """What came in, in shape and layout, and the mean and deviation of every channel."""
    dense = images.is_contiguous() or (images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last))
    channels = images.new_empty(images.shape[1]) if weight is None else fake_like(weight, images.fake_mode)
    normed = fake_like(images, images.fake_mode) if dense else torch.empty_like(images)
    return normed, channels, fake_like(channels, images.fake_mode)
