"""Convolutions: one weight's share is a dot product of one output-gradient map with one shifted input map."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from budgeted.network.sampled_layers.gather import DotProducts, Gather
from budgeted.network.sampled_layers.layer import SampledLayer, Use

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class SampledConvolution(SampledLayer[Convolution]):
    """Any stride, padding, dilation, groups and padding mode, in one, two or three dimensions."""

    def __init__(self, name: str, module: Convolution, weight: Tensor, bias: Tensor) -> None:
        super().__init__(name, module, weight, bias)
        inputs, *kernel = module.weight.shape[1:]
        self.outputs, inputs_in_group, *self._taps = torch.unravel_index(weight, (module.out_channels, inputs, *kernel))
        group = self.outputs // (module.out_channels // module.groups)
        self.inputs = group * inputs + inputs_in_group
        self._inside: dict[tuple[int, ...], bool] = {}

    @property
    def least_dims(self) -> int:
        return len(self.module.kernel_size) + 2

    def weight_price(self, use: Use) -> int:
        size = (*use.input[2:], *use.output[2:])
        if size not in self._inside:
            half = len(size) // 2
            self._inside[size] = all(
                bool(self._read(axis, size[axis], size[half + axis])[1].all()) for axis in range(half)
            )
        products = use.batch * prod(use.output[2:]) * len(self.weight)
        return products * (2 if self._inside[size] else 3)

    def _new_plan(self, source: Tensor, gradient: Tensor) -> DotProducts:
        count = len(self.weight)
        positions = torch.zeros(count, 1, dtype=torch.int64)
        inside = torch.ones(count, 1, dtype=torch.bool)
        for axis, stride in enumerate(source.stride()[2:]):
            read, counts = self._read(axis, source.shape[axis + 2], gradient.shape[axis + 2])
            positions = (positions[:, :, None] + read[:, None] * stride).reshape(count, -1)
            inside = (inside[:, :, None] & counts[:, None]).reshape(count, -1)
        offsets = self.inputs[:, None] * source.stride(1) + positions
        return DotProducts(
            Gather(offsets, source),
            Gather(self._channels(self.outputs, gradient), gradient),
            None if bool(inside.all()) else inside,
        )

    def _read(self, axis: int, size: int, outputs: int) -> tuple[Tensor, Tensor]:
        """`[entry, output position]`: the input position under the entry's tap, and whether it counts."""
        module = self.module
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1)
        if isinstance(module.padding, str):
            before = reach // 2 if module.padding == "same" else 0
        else:
            before = module.padding[axis]
        position = self._taps[axis][:, None] * module.dilation[axis] - before
        position = position + torch.arange(outputs) * module.stride[axis]
        everywhere = torch.ones_like(position, dtype=torch.bool)
        if module.padding_mode == "circular":
            return position % size, everywhere
        if module.padding_mode == "reflect":
            position = position.abs()
            return torch.where(position < size, position, 2 * (size - 1) - position), everywhere
        nearest = position.clamp(0, size - 1)
        return nearest, everywhere if module.padding_mode == "replicate" else nearest == position
