"""Linear layers: one weight's share is an input feature times an output gradient, over all positions."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from budgeted.network.sampled_layers.gather import DotProducts, Gather, channel_offsets
from budgeted.network.sampled_layers.layer import SampledLayer, Use


class SampledLinear(SampledLayer[nn.Linear]):
    """Inputs `[batch, ..., features]`: any number of positions between the batch and the features."""

    def __init__(self, name: str, module: nn.Linear, weight: Tensor, bias: Tensor) -> None:
        super().__init__(name, module, weight, bias)
        self.outputs = weight // module.in_features
        self.inputs = weight % module.in_features

    def weight_price(self, use: Use) -> int:
        return 2 * prod(use.input[:-1]) * len(self.weight)

    def _new_plan(self, source: Tensor, gradient: Tensor) -> DotProducts:
        return DotProducts(
            Gather(self._channels(self.inputs, source), source),
            Gather(self._channels(self.outputs, gradient), gradient),
        )

    def _channels(self, channels: Tensor, tensor: Tensor) -> Tensor:
        features_first = tensor.movedim(-1, 1)
        return channel_offsets(channels, features_first.shape[1:], features_first.stride()[1:])

    def _channel_count(self, shape: tuple[int, ...]) -> int:
        return shape[-1]
