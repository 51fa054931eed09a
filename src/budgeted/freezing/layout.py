"""Saved copies of a model's tensors, laid out in memory as the model's own are.

A convolution's bits depend on the memory format of its weight, and a checkpoint keeps values alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def laid_out_as(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of `tensors`, by the names of the model's parameters and buffers: same device, same strides."""
    own = dict((*model.named_parameters(), *model.named_buffers()))
    laid: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        like = own[name].detach()
        if like.shape == tensor.shape:
            laid[name] = torch.empty_like(like, memory_format=torch.preserve_format).copy_(tensor)
        else:  # a head that has grown since
            laid[name] = tensor.to(like.device, copy=True)
    return laid
