"""Whole gradients of single samples, from one ordinary pass of all of them in evaluation mode.

There a sample does not see the others, so the gradient of the summed loss at a layer's output holds every sample's own.
What it makes of a weight is a product with what the layer was given: one batched product for a convolution or a linear
layer, one elementwise for a normalisation. Samples whose mean alone is wanted go `together`, as one more row:

    gradients = PerSampleGradients(model)
    for name, rows in gradients(images, labels, together=8):  # rows: [len(images) - 8 + 1, *parameter.shape]
        products += flat(rows) @ flat(rows).T

Parameter after parameter: the rows of one are all that is held. A model that has a parameter elsewhere than in these
layers, or reads one behind their back, gets the same from `torch.func`, which is slower and holds them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap

from budgeted.network.evaluation_mode import evaluating
from budgeted.network.sampled_layers.convolution import Convolution
from budgeted.network.sampled_layers.kinds import layer_kind

_LAID_OUT = 2**18  # elements of windows at a time: they stay in the cache


class _Use(NamedTuple):
    """One use of a layer in the pass."""

    module: nn.Module
    source: Tensor
    shape: tuple[int, ...]
    """of the output"""
    edge: GradientEdge
    """where the gradient of the output arrives, even if the output is overwritten in place"""
    statistics: tuple[Tensor, Tensor] | None
    """mean and inverse deviation, of a normalisation that takes them from its input"""


class PerSampleGradients:
    """Gradients of every sample's cross-entropy for all trainable parameters of a model whose batches come first."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.by_layer = _knows_every_layer(model)  # for certain from the first pass on
        self._checked = False

    def __call__(self, images: Tensor, labels: Tensor, together: int = 0) -> Iterator[tuple[str, Tensor]]:
        """Name and rows of each parameter; of the last samples, `together`, the gradient of the mean loss alone."""
        with evaluating(self.model), torch.enable_grad():
            uses: list[_Use] = []
            if self.by_layer:
                with _noting(self.model, uses):
                    logits = self.model(images)
                losses = F.cross_entropy(logits, labels, reduction="none")
                loss = losses[: len(labels) - together].sum()
                if together:
                    loss = loss + losses[-together:].mean()
                if not self._checked:  # once: what a model reads, and how, is the same in every pass
                    self._checked, self.by_layer = True, self._all_seen(uses, loss, len(labels))
            if not self.by_layer:
                return self._from_vmap(images, labels, together)
            gradients = torch.autograd.grad(loss, [use.edge for use in uses], allow_unused=True)
        return self._from_layers(uses, [*gradients], together)

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def _all_seen(self, uses: list[_Use], loss: Tensor, batch: int) -> bool:
        """Is everything that reads a parameter the use of a layer, and on a batch of all samples?"""
        seen = Counter(id(p) for use in uses for p in use.module._parameters.values() if p is not None)
        read, waiting, known = Counter[int](), [loss.grad_fn], {loss.grad_fn}
        while waiting:
            node = waiting.pop()
            for below, _ in () if node is None else node.next_functions:
                if isinstance(variable := getattr(below, "variable", None), Tensor):
                    read[id(variable)] += 1
                elif below not in known:
                    known.add(below)
                    waiting.append(below)
        whole = all(use.source.ndim >= _least_dims(use) and len(use.source) == use.shape[0] == batch for use in uses)
        return whole and all(seen[id(p)] == read[id(p)] for p in self._trained().values())

    @torch.no_grad()
    def _from_layers(
        self, uses: list[_Use], gradients: list[Tensor | None], together: int
    ) -> Iterator[tuple[str, Tensor]]:
        of_parameter: dict[int, list[int]] = {}
        for number, use in enumerate(uses):
            for parameter in use.module._parameters.values():
                if parameter is not None and gradients[number] is not None:
                    of_parameter.setdefault(id(parameter), []).append(number)
        for name, parameter in self._trained().items():
            rows: Tensor | None = None
            for number in of_parameter.get(id(parameter), ()):
                use, gradient = uses[number], gradients[number]
                assert gradient is not None
                make = _bias_rows if parameter is use.module._parameters.get("bias") else _weight_rows
                more = make(use, gradient.view(use.shape), together)
                rows = more if rows is None else rows + more
            if rows is None:
                count = len(uses[0].source) - together + (together > 0) if uses else 0
                rows = parameter.new_zeros(count, *parameter.shape)
            yield name, rows

    def _from_vmap(self, images: Tensor, labels: Tensor, together: int) -> Iterator[tuple[str, Tensor]]:
        buffers = dict(self.model.named_buffers())

        def loss(given: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.model, {**given, **buffers}, (images,)), labels)

        def loss_of_one(given: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return loss(given, image[None], label[None])

        alone = len(labels) - together
        parameters = {name: parameter.detach() for name, parameter in self._trained().items()}
        rows = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(parameters, images[:alone], labels[:alone])
        if together:
            mean = grad(loss)(parameters, images[alone:], labels[alone:])
            rows = {name: torch.cat([rows[name], mean[name][None]]) for name in rows}
        return iter(rows.items())


def flat(rows: Tensor) -> Tensor:
    """Rows as a matrix, with the entries in the order of memory: what products of rows need, without a copy."""
    order = sorted(range(1, rows.ndim), key=rows.stride, reverse=True)
    return rows.permute(0, *order).flatten(1)


def _knows_every_layer(model: nn.Module) -> bool:
    """Are all trainable parameters those of known layers, and does no sample see the others?"""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            return False  # normalises with its batch even in evaluation
        own = {name for name, parameter in module._parameters.items() if parameter is not None}
        if any(module._parameters[name].requires_grad for name in own) and (  # type: ignore[union-attr]
            layer_kind(module) is None or not own <= {"weight", "bias"}
        ):
            return False
    return True


@contextmanager
def _noting(model: nn.Module, uses: list[_Use]) -> Iterator[None]:
    """Note every use of a layer with trainable parameters."""

    def note(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        source = args[0] if args else next(iter(named.values()))
        # a linear layer over tokens may return a view, whose own node is bypassed when it is overwritten
        edge = get_gradient_edge(output if output._base is None else output._base)
        statistics = None
        if isinstance(module, nn.GroupNorm | nn.LayerNorm):  # the forward has left them in its graph
            statistics = edge.node._saved_result1, edge.node._saved_result2  # type: ignore[attr-defined]
        uses.append(_Use(module, source.detach(), tuple(output.shape), edge, statistics))

    with ExitStack() as hooks:
        for module in model.modules():
            if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
                hooks.enter_context(module.register_forward_hook(note, with_kwargs=True))
        yield


def _least_dims(use: _Use) -> int:
    """Dimensions of an input that begins with the batch."""
    module = use.module
    if isinstance(module, nn.LayerNorm):
        return len(module.normalized_shape) + 1
    return len(module.kernel_size) + 2 if isinstance(module, Convolution) else 2


def _weight_rows(use: _Use, gradient: Tensor, together: int) -> Tensor:
    module, source = use.module, use.source
    match module:
        case nn.Linear():
            rows = _products(_with_positions(source)[:, None], _with_positions(gradient)[:, None], together)
            return rows.view(-1, module.out_features, module.in_features)
        case nn.LayerNorm():
            assert use.statistics is not None
            mean, scale = use.statistics
            shares = (source - mean).mul_(scale).mul_(gradient)
            return _summed(shares.reshape(len(source), -1, *module.normalized_shape).sum(1), together)
        case nn.GroupNorm():
            assert use.statistics is not None
            mean, scale = (each.repeat_interleave(source.shape[1] // each.shape[1], 1) for each in use.statistics)
            shares = _over_positions(source * gradient).sub_(_over_positions(gradient).mul(mean)).mul_(scale)
            return _summed(shares, together)
        case nn.BatchNorm1d() | nn.BatchNorm2d() | nn.BatchNorm3d():
            assert module.running_mean is not None
            assert module.running_var is not None
            mean = module.running_mean.view(-1, *[1] * (source.ndim - 2))
            shares = _over_positions((source - mean).mul_(gradient))
            return _summed(shares.mul_((module.running_var + module.eps).rsqrt_()), together)
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            rows = _products(_windows(module, source, gradient.shape[2:]), _positions(module, gradient), together)
            inside = module.in_channels // module.groups
            return rows.view(-1, module.out_channels, *module.kernel_size, inside).movedim(-1, 2)
    raise AssertionError(f"{type(module).__name__} is no known layer")


def _bias_rows(use: _Use, gradient: Tensor, together: int) -> Tensor:
    if isinstance(use.module, nn.LayerNorm):
        shares = gradient.reshape(len(gradient), -1, *use.module.normalized_shape).sum(1)
    elif isinstance(use.module, nn.Linear):
        shares = _with_positions(gradient).sum(1)
    else:
        shares = _over_positions(gradient)
    return _summed(shares, together)


def _products(sources: Tensor, gradients: Tensor, together: int) -> Tensor:
    """[rows, groups x outputs x inputs], from [batch, groups, *positions, *inputs] that a layer was given and gradients
    [batch, groups, positions, outputs].

    A few samples at a time, so that windows of a large map are never laid out for all of them; samples that go
    together are one sample with all their positions.
    """
    batch, groups, positions, outputs = gradients.shape
    alone, inputs = batch - together, sources[0, 0].numel() // positions
    chunk = max(1, _LAID_OUT // sources[0].numel())
    rows = sources.new_empty(alone + (together > 0), groups * outputs * inputs)
    for few in _parts(0, alone, chunk):
        out = rows[few].view(-1, outputs, inputs)
        torch.bmm(gradients[few].flatten(0, 1).mT, sources[few].reshape(-1, positions, inputs), out=out)
    for few in _parts(alone, batch, chunk):
        given = sources[few].transpose(0, 1).reshape(groups, -1, inputs)
        arrived = gradients[few].transpose(0, 1).flatten(1, 2).mT
        rows[alone].view(groups, outputs, inputs).baddbmm_(arrived, given, beta=int(few.start > alone))
    return rows


def _parts(start: int, end: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, end)) for first in range(start, end, size))


def _windows(module: Convolution, source: Tensor, size: torch.Size) -> Tensor:
    """[batch, groups, *positions, *taps, channels]: what each position of the output was made from; not laid out."""
    if any(module._reversed_padding_repeated_twice):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        source = F.pad(source, module._reversed_padding_repeated_twice, mode)
    channels_last: Tensor = source.movedim(1, -1).contiguous()  # in the layout of small ResNets: no copy
    batch, *steps, unit = channels_last.stride()
    inside = module.in_channels // module.groups
    shape = (len(source), module.groups, *size, *module.kernel_size, inside)
    strides = (
        batch,
        inside * unit,
        *(step * apart for step, apart in zip(steps, module.stride, strict=True)),
        *(step * apart for step, apart in zip(steps, module.dilation, strict=True)),
        unit,
    )
    return channels_last.as_strided(shape, strides)


def _positions(module: Convolution, gradient: Tensor) -> Tensor:
    """[batch, groups, positions, channels of a group]."""
    by_group: Tensor = gradient.flatten(2).mT.unflatten(2, (module.groups, -1))
    return by_group.transpose(1, 2)


def _with_positions(tensor: Tensor) -> Tensor:
    """[batch, positions, features] from any number of dimensions between."""
    return tensor[:, None] if tensor.ndim == 2 else tensor.flatten(1, -2)


def _over_positions(shares: Tensor) -> Tensor:
    """[batch, channels] from channels in the second dimension."""
    return shares if shares.ndim == 2 else shares.flatten(2).sum(2)


def _summed(shares: Tensor, together: int) -> Tensor:
    """Rows of the samples alone, and the sum of those that go together."""
    if not together:
        return shares
    alone = len(shares) - together
    return torch.cat([shares[:alone], shares[alone:].sum(0, keepdim=True)])
