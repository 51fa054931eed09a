"""Batch norm folded into the convolutions before it, for a while: the same answers but for rounding, in less time.

In evaluation mode batch norm is a scale and a shift of every channel, which a convolution can do with its own weights.
Which pairs there are is found in the graph that torch.fx writes down of the model; a convolution whose output goes
anywhere else, or a layer that is used twice, stays as it is, and so does a model that cannot be followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

Pair = tuple[nn.Conv2d, nn.BatchNorm2d]


def foldable(model: nn.Module) -> list[Pair]:
    """Convolutions whose only reader is a batch norm, each with it."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception:  # whatever the user's own code raises when its inputs are stand-ins: nothing is folded
        return []
    calls = [node for node in graph.nodes if node.op == "call_module"]
    layers = {node: model.get_submodule(str(node.target)) for node in calls}
    uses = Counter(id(layer) for layer in layers.values())
    found: list[Pair] = []
    for node, norm in layers.items():
        given = node.args[0] if node.args else None
        convolution = layers.get(given) if isinstance(given, fx.Node) else None
        if (
            isinstance(norm, nn.BatchNorm2d)
            and isinstance(convolution, nn.Conv2d)
            and isinstance(given, fx.Node)
            and len(given.users) == uses[id(norm)] == uses[id(convolution)] == 1
            and norm.running_mean is not None
        ):
            found.append((convolution, norm))
    return found


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Inside, the model, which is in evaluation mode, does its batch norms in its convolutions."""
    pairs = foldable(model)
    before = [(convolution._parameters["weight"], convolution._parameters["bias"]) for convolution, _ in pairs]
    try:
        for convolution, norm in pairs:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            weight, bias = fuse_conv_bn_weights(
                convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight,
                norm.bias,
            )  # fmt: skip
            _give(convolution, weight, bias)
            norm.__dict__["forward"] = _as_it_is
        yield
    finally:
        for (convolution, norm), own in zip(pairs, before, strict=True):
            _give(convolution, *own)
            norm.__dict__.pop("forward", None)


def _give(convolution: nn.Conv2d, weight: nn.Parameter | None, bias: nn.Parameter | None) -> None:
    convolution._parameters.update(weight=weight, bias=bias)


def _as_it_is(maps: Tensor) -> Tensor:
    return maps
