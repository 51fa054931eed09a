"""What every layer kind answers: a row of its sampled entries for each sample, and the price of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from budgeted.network.sampled_layers.gather import Gather, channel_offsets

Module = TypeVar("Module", bound=nn.Module)

# Index plans a layer keeps, one per shape and memory format: ever new image sizes must not fill the memory.
MOST_PLANS = 8


class Use(NamedTuple):
    """One use of a layer in a forward pass, without its tensors."""

    input: tuple[int, ...]
    output: tuple[int, ...]
    training: bool

    @property
    def batch(self) -> int:
        return self.input[0]


class SampledLayer(ABC, Generic[Module]):
    """The sampled entries of one layer: flat indices into its weight and its bias, either may be empty.

    Subclasses say what a sample's share of the gradient of those entries is. A price counts one for each
    element of elementwise arithmetic, one for each element that a reduction reads (a mean also divides what
    it writes) and nothing for a gather or a copy.
    """

    def __init__(self, name: str, module: Module, weight: Tensor, bias: Tensor) -> None:
        self.name = name
        self.module = module
        self.weight = weight
        self.bias = bias
        self._weight_plans: dict[tuple[Any, ...], Any] = {}
        self._bias_plans: dict[tuple[Any, ...], Gather] = {}

    @property
    def least_dims(self) -> int:
        """Dimensions an input with a batch dimension has at least."""
        return 2

    def weight_rows(self, source: Tensor, gradient: Tensor, training: bool) -> Tensor:
        """`[batch, entries]` from the layer's input and the gradient of its output."""
        rows: Tensor = self._plan(source, gradient)(source, gradient)
        return rows

    @abstractmethod
    def weight_price(self, use: Use) -> int:
        """Operations `weight_rows` executes."""

    def bias_rows(self, gradient: Tensor) -> Tensor:
        """`[batch, entries]`: a bias entry is added at every position of its channel."""
        key = (gradient.shape, gradient.stride(), gradient.device)
        gather = self._bias_plans.get(key)
        if gather is None:
            _make_room(self._bias_plans)
            self._bias_plans[key] = gather = Gather(self._channels(self.bias, gradient), gradient)
        return gather(gradient).view(gather.shape).sum(1)

    def bias_price(self, use: Use) -> int:
        return prod(use.output) // self._channel_count(use.output) * len(self.bias)

    def _plan(self, source: Tensor, gradient: Tensor) -> Any:
        """Where in these two tensors the weight's rows are read: worked out once for each shape and format."""
        key = (source.shape, source.stride(), gradient.stride(), source.device)
        plan = self._weight_plans.get(key)
        if plan is None:
            _make_room(self._weight_plans)
            self._weight_plans[key] = plan = self._new_plan(source, gradient)
        return plan

    @abstractmethod
    def _new_plan(self, source: Tensor, gradient: Tensor) -> Any: ...

    def _channels(self, channels: Tensor, tensor: Tensor) -> Tensor:
        """Offsets of whole channels; these come right after the batch unless a layer kind says otherwise."""
        return channel_offsets(channels, tensor.shape[1:], tensor.stride()[1:])

    def _channel_count(self, shape: tuple[int, ...]) -> int:
        return shape[1]


def _make_room(plans: dict[Any, Any]) -> None:
    if len(plans) >= MOST_PLANS:
        plans.clear()
