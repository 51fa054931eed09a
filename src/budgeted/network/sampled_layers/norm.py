"""Normalisations: a weight's share is the normalised input times the output gradient, over all positions."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from budgeted.network.sampled_layers.gather import Gather, channel_offsets
from budgeted.network.sampled_layers.layer import Module, SampledLayer, Use

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


class NormPlan(NamedTuple):
    source: Gather
    gradient: Gather


class _SampledNorm(SampledLayer[Module]):
    """Reads the sampled channels of both tensors."""

    def _new_plan(self, source: Tensor, gradient: Tensor) -> NormPlan:
        return NormPlan(
            Gather(self._channels(self.weight, source), source),
            Gather(self._channels(self.weight, gradient), gradient),
        )


class SampledBatchNorm(_SampledNorm[BatchNorm]):
    """Statistics of the sampled channels alone: of the batch in training, the running ones otherwise.

    In training every sample moves the statistics of the others; the share of a sample is what its own
    positions contribute to the sum that is the gradient.
    """

    def weight_rows(self, source: Tensor, gradient: Tensor, training: bool) -> Tensor:
        plan: NormPlan = self._plan(source, gradient)
        read = plan.source(source).view(plan.source.shape)
        running_mean, running_variance = self.module.running_mean, self.module.running_var
        if training or running_mean is None or running_variance is None:
            centred = read.sub_(read.mean((0, 1)))
            variance = (centred * centred).mean((0, 1))
        else:
            channels = self.weight.to(running_mean.device)
            centred = read.sub_(running_mean.index_select(0, channels))
            variance = running_variance.index_select(0, channels)
        scale = (variance + self.module.eps).rsqrt_()
        return centred.mul_(plan.gradient(gradient).view_as(centred)).sum(1).mul_(scale)

    def weight_price(self, use: Use) -> int:
        entries = len(self.weight)
        read = use.batch * prod(use.input[2:]) * entries
        rows = use.batch * entries
        if use.training or self.module.running_mean is None:
            return 6 * read + 4 * entries + rows
        return 3 * read + 2 * entries + rows


class SampledLayerNorm(_SampledNorm[nn.LayerNorm]):
    """Statistics of every position over all features: the one part that sampling does not make smaller."""

    @property
    def least_dims(self) -> int:
        return len(self.module.normalized_shape) + 1

    def weight_rows(self, source: Tensor, gradient: Tensor, training: bool) -> Tensor:
        features = tuple(range(-len(self.module.normalized_shape), 0))
        wide = source.float() if source.dtype in (torch.float16, torch.bfloat16) else source
        centred = wide - wide.mean(features, keepdim=True)
        variance = (centred * centred).mean(features)
        scale = (variance + self.module.eps).rsqrt_().reshape(source.shape[0], -1, 1)
        plan: NormPlan = self._plan(centred, gradient)
        sampled = plan.source(centred).view(plan.source.shape)
        return sampled.mul_(scale).mul_(plan.gradient(gradient).view_as(sampled)).sum(1)

    def weight_price(self, use: Use) -> int:
        positions = prod(use.input) // prod(self.module.normalized_shape)
        return 4 * prod(use.input) + 4 * positions + 3 * positions * len(self.weight)

    def _channels(self, channels: Tensor, tensor: Tensor) -> Tensor:
        # The normalised shape may have several dimensions, and a channel is one place in all of them.
        shape = self.module.normalized_shape
        strides = tensor.stride()[-len(shape) :]
        places = torch.unravel_index(channels, shape)
        offsets = torch.stack([place * stride for place, stride in zip(places, strides, strict=True)]).sum(0)
        sizes = tensor.shape[1 : tensor.dim() - len(shape)]
        return channel_offsets(offsets, (1, *sizes), (1, *tensor.stride()[1 : 1 + len(sizes)]))

    def _channel_count(self, shape: tuple[int, ...]) -> int:
        return prod(self.module.normalized_shape)


class GroupNormPlan(NamedTuple):
    source: Gather
    gradient: Gather
    entries: Tensor
    groups: Tensor


class SampledGroupNorm(SampledLayer[nn.GroupNorm]):
    """Statistics of each sample over those groups alone that hold a sampled channel."""

    def __init__(self, name: str, module: nn.GroupNorm, weight: Tensor, bias: Tensor) -> None:
        super().__init__(name, module, weight, bias)
        self.width = module.num_channels // module.num_groups
        self.groups, self.group_of_entry = torch.unique(weight // self.width, return_inverse=True)
        self.place_of_entry = self.group_of_entry * self.width + weight % self.width

    def weight_rows(self, source: Tensor, gradient: Tensor, training: bool) -> Tensor:
        plan: GroupNormPlan = self._plan(source, gradient)
        batch, positions, _ = plan.source.shape
        groups = plan.source(source).view(batch, positions, len(self.groups), self.width)
        centred = groups.sub_(groups.mean((1, 3), keepdim=True))
        variance = (centred * centred).mean((1, 3))
        scale = (variance + self.module.eps).rsqrt_().index_select(1, plan.groups)
        sampled = centred.view(plan.source.shape).index_select(2, plan.entries)
        return sampled.mul_(plan.gradient(gradient).view_as(sampled)).sum(1).mul_(scale)

    def weight_price(self, use: Use) -> int:
        entries, groups, positions = len(self.weight), len(self.groups), prod(use.input[2:])
        in_sample = groups * (4 * self.width * positions + 4) + entries * (2 * positions + 1)
        return use.batch * in_sample

    def _new_plan(self, source: Tensor, gradient: Tensor) -> GroupNormPlan:
        channels = (self.groups[:, None] * self.width + torch.arange(self.width)).reshape(-1)
        return GroupNormPlan(
            Gather(self._channels(channels, source), source),
            Gather(self._channels(self.weight, gradient), gradient),
            self.place_of_entry.to(source.device),
            self.group_of_entry.to(source.device),
        )
