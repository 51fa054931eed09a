"""Which modules are known layer kinds."""

from __future__ import annotations

from typing import Any

from torch import nn

from budgeted.network.sampled_layers.convolution import SampledConvolution
from budgeted.network.sampled_layers.layer import SampledLayer
from budgeted.network.sampled_layers.linear import SampledLinear
from budgeted.network.sampled_layers.norm import SampledBatchNorm, SampledGroupNorm, SampledLayerNorm

KINDS: dict[type[nn.Module], type[SampledLayer[Any]]] = {
    nn.Conv1d: SampledConvolution,
    nn.Conv2d: SampledConvolution,
    nn.Conv3d: SampledConvolution,
    nn.Linear: SampledLinear,
    nn.BatchNorm1d: SampledBatchNorm,
    nn.BatchNorm2d: SampledBatchNorm,
    nn.BatchNorm3d: SampledBatchNorm,
    nn.LayerNorm: SampledLayerNorm,
    nn.GroupNorm: SampledGroupNorm,
}


def layer_kind(module: nn.Module) -> type[SampledLayer[Any]] | None:
    """The kind of a module, or None where its gradient is not known to be that of a kind.

    A subclass counts as long as it computes what its base does. The output projection of attention is never
    called: attention reads its weight directly, so no gradient of its output would ever arrive.
    """
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None
    for base, kind in KINDS.items():
        if isinstance(module, base) and all(
            getattr(type(module), method, None) is getattr(base, method, None)
            for method in ("forward", "_conv_forward")
        ):
            return kind
    return None
