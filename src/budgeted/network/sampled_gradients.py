"""A few coordinates of every sample's gradient, read off during the one ordinary backward pass.

Similarity between samples needs per-sample gradients, but only at a random 0.05 % of the parameters. Each
of those numbers is a short dot product of what a layer was given and the gradient that reaches its output, so
that neither a second pass nor a full per-sample gradient is ever needed:

    sampled = SampledGradients(model, exclude=["head"])
    with sampled:
        loss = cross_entropy(model(x), y)
        sampled.skip(frozen)
        loss.backward(inputs=unfrozen)
        step = sampled.take()
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _current_graph_task_id
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.hooks import RemovableHandle

from budgeted.errors import BudgetedError
from budgeted.network.sampled_layers import Use, draw

MOST_PRICES = 256  # prices kept: one for each frozen set and batch shape


class Coordinate(NamedTuple):
    """One sampled entry: the name of its parameter and its place in the flattened parameter."""

    parameter: str
    flat_index: int


@dataclass(frozen=True)
class SampledStep:
    """What one backward pass gave.

    `values[i]` is sample i's share of the gradient of the loss as it was given: under a mean over the batch
    it carries the 1/batch, and the rows add up to the parameter's `.grad`. Columns not `present` are zero.
    """

    values: Tensor
    present: Tensor


class _Call:
    """One use of a layer, with its input until the gradient of its output has met it or the step is over.

    The hook in the graph owns it and the collector only knows of it: where a graph is dropped without a
    `take`, the inputs go with it.
    """

    __slots__ = ("__weakref__", "noted", "source", "use")

    def __init__(self, source: Tensor, use: Use, noted: _Noted) -> None:
        self.source: Tensor | None = source
        self.use = use
        self.noted = noted


class _Noted:
    """What one thread's forward showed; its backward, which may run in another, adds to the same."""

    def __init__(self) -> None:
        self.paused = False
        self.calls: list[weakref.ref[_Call]] = []
        self.clear()

    def clear(self) -> None:
        for known in self.calls:
            if (call := known()) is not None:
                call.source = None
        self.calls.clear()
        self.rows: list[tuple[int, Tensor]] = []
        self.seen: dict[int, Use] = {}
        self.fired: list[tuple[int, Use]] = []
        self.skipped: set[int] = set()


class SampledGradients:
    """Collects sampled coordinates of per-sample gradients; the model is not wrapped, it only gets hooks.

    The coordinates are drawn once from `seed`, without replacement, over the trainable entries of convolutions,
    linear layers and batch, layer and group normalisations outside the modules named in `exclude`. All are equally
    likely to be drawn, but `group` of them together, in one layer: reading several coordinates of a layer costs little
    more than reading one. 1 draws every one by itself. A parameter that a module of another kind owns too is left
    out, since that share of its gradient would be missed. The first dimension of every input is the batch. A layer
    used several times in one pass, and a parameter shared by several layers, add up.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        fraction: float = 0.0005,
        group: int = 16,
        seed: int = 0,
        exclude: Collection[str] = (),
    ) -> None:
        self._shares, self._layers = draw(model, fraction, group, seed, exclude)
        self.coordinates: tuple[Coordinate, ...] = tuple(
            Coordinate(share.parameter, index) for share in self._shares for index in share.indices.tolist()
        )
        self._counts = torch.tensor([share.count for share in self._shares])
        self._handles: list[RemovableHandle] = []
        self._listening = False
        self._last_fired: list[tuple[int, Use]] = []
        self._last_seen: dict[int, Use] = {}
        self._most_calls = 4 * len(self._layers)
        self._prices: dict[tuple[Any, ...], int] = {}
        self._latest_marks: tuple[tuple[tuple[bool, ...], torch.device | None], Tensor] | None = None
        self._threads = threading.local()

    def __len__(self) -> int:
        return len(self.coordinates)

    def start(self) -> None:
        """Install the hooks. They do nothing where no gradient is recorded, nor on fake tensors."""
        if not self._handles:
            self._handles = [
                layer.layer.module.register_forward_hook(self._forward_hook(number), with_kwargs=True)
                for number, layer in enumerate(self._layers)
            ]
        self._listening = True

    def stop(self) -> None:
        """Remove the hooks and forget the step under way."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._listening = False
        self._noted.clear()
        self._threads = threading.local()

    def __enter__(self) -> SampledGradients:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what runs inside: another forward pass, or a backward through a graph still needed."""
        noted = self._noted
        before, noted.paused = noted.paused, True
        try:
            yield
        finally:
            noted.paused = before

    def skip(self, frozen: Iterable[nn.Parameter]) -> None:
        """Leave these parameters out of this step; called between the forward and the backward pass."""
        self._noted.skipped.update(map(id, frozen))

    def take(self) -> SampledStep:
        """The coordinates of the backward pass since the last `take`; nothing of that pass is kept."""
        noted = self._noted
        if not noted.seen:
            raise BudgetedError("no forward pass was seen since the last take(): call start() before the forward pass")
        batch = self._one_batch(noted)
        rows: list[Tensor | None] = [None] * len(self._shares)
        for number, more in noted.rows:
            before = rows[number]
            rows[number] = more if before is None else before + more
        device = noted.rows[0][1].device if noted.rows else None
        collected = tuple(of_share is not None for of_share in rows)
        columns = [
            torch.zeros(batch, share.count, device=device) if of_share is None else of_share
            for share, of_share in zip(self._shares, rows, strict=True)
        ]
        step = SampledStep(torch.cat(columns, 1).float(), self._marks(collected, device))
        self._last_fired, self._last_seen = noted.fired, noted.seen
        noted.clear()
        return step

    def _marks(self, collected: tuple[bool, ...], device: torch.device | None) -> Tensor:
        """For each coordinate whether it is there; the same in most steps, so the latest stays."""
        if self._latest_marks is None or self._latest_marks[0] != (collected, device):
            marks = torch.tensor(collected).repeat_interleave(self._counts).to(device)
            self._latest_marks = (collected, device), marks
        return self._latest_marks[1]

    def price(self, present: Tensor) -> int:
        """Operations that collecting the `present` coordinates costs on the shapes of the last step.

        Two for a multiply-add; one for each element of any other arithmetic and for each that a reduction
        reads. A parameter is collected whole or not at all. A layer whose backward never ran counts as used once.
        """
        flags = present.tolist()
        collected = tuple(flags[share.first] for share in self._shares)
        key = (collected, tuple(self._last_fired), tuple(self._last_seen.items()))
        if key not in self._prices:
            if len(self._prices) >= MOST_PRICES:
                self._prices.clear()
            self._prices[key] = self._priced(collected)
        return self._prices[key]

    def _priced(self, collected: tuple[bool, ...]) -> int:
        fired = {number for number, _ in self._last_fired}
        unused = [(number, use) for number, use in self._last_seen.items() if number not in fired]
        total = 0
        added: set[int] = set()
        for number, use in (*self._last_fired, *unused):
            layer, weight, bias = self._layers[number]
            for share, price in ((weight, layer.weight_price), (bias, layer.bias_price)):
                if share is not None and collected[share.number]:
                    # From the second use on, the rows are added to those before.
                    total += price(use) + (use.batch * share.count if share.number in added else 0)
                    added.add(share.number)
        return total

    @property
    def _noted(self) -> _Noted:
        """This thread's: another one may run the model meanwhile."""
        noted: _Noted | None = getattr(self._threads, "noted", None)
        if noted is None:
            noted = self._threads.noted = _Noted()
        return noted

    def _forget_dropped_graphs(self, noted: _Noted) -> None:
        noted.calls = [known for known in noted.calls if known() is not None]
        self._most_calls = max(self._most_calls, 2 * len(noted.calls))

    def _one_batch(self, noted: _Noted) -> int:
        """The number of samples of the step, which must be the same in every layer."""
        uses = noted.fired or list(noted.seen.items())
        batch = uses[0][1].batch
        for number, use in uses:
            if use.batch != batch:
                name, first = self._layers[number].layer.name, self._layers[uses[0][0]].layer.name
                noted.clear()
                raise BudgetedError(
                    f"layer {name!r} had a batch of {use.batch}, layer {first!r} one of {batch}: "
                    "pass the same samples through all layers, or exclude one of the two"
                )
        return batch

    def _forward_hook(self, number: int) -> Callable[..., None]:
        layer = self._layers[number].layer
        watched, least_dims = layer.module, layer.least_dims
        collect = partial(self._collect, number)

        # A function and not a method: copying the model copies its hooks, and a method would copy its owner.
        def remember(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
            # A linear layer over tokens returns a view, whose own node is bypassed when it is overwritten in place.
            node = output.grad_fn if output._base is None else output._base.grad_fn
            if (
                node is None
                or not self._listening
                or module is not watched
                # Fake and wrapped tensors belong to a tracer; a running backward recomputes what was seen.
                or type(output) is not Tensor
                or is_functorch_wrapped_tensor(output)
                or _current_graph_task_id() != -1
                or (noted := self._noted).paused
            ):
                return
            source: Tensor = args[0] if args else next(iter(named.values()))
            if source.dim() < least_dims:
                raise BudgetedError(
                    f"layer {layer.name!r} was given a sample without a batch dimension: add one, or exclude it"
                )
            noted.seen[number] = use = Use(source.shape, output.shape, module.training)
            call = _Call(source, use, noted)
            noted.calls.append(weakref.ref(call))
            if len(noted.calls) > self._most_calls:
                self._forget_dropped_graphs(noted)
            # After the layer's own backward, and not before, its input and its gradient are in the cache; and
            # the node is the layer's even if the output is overwritten in place later.
            node.register_hook(partial(collect, call))

        return remember

    def _collect(
        self,
        number: int,
        call: _Call,
        of_inputs: tuple[Tensor | None, ...],
        of_outputs: tuple[Tensor | None, ...],
    ) -> None:
        gradient, noted = of_outputs[0], call.noted
        if gradient is None or noted.paused or not self._listening:
            return
        layer, weight, bias = self._layers[number]
        source, use = call.source, call.use
        if source is None:
            raise BudgetedError(
                f"a second backward pass reached layer {layer.name!r}: run the first inside paused(), "
                "or run the forward pass again after take()"
            )
        call.source = None
        noted.fired.append((number, use))
        if gradient.shape != use.output:
            gradient = gradient.reshape(use.output)
        if torch.is_grad_enabled():  # only where the backward pass is itself to be differentiated
            source, gradient = source.detach(), gradient.detach()
        parameters = layer.module._parameters
        if weight is not None and self._wanted(parameters["weight"], noted):
            noted.rows.append((weight.number, layer.weight_rows(source, gradient, use.training)))
        if bias is not None and self._wanted(parameters["bias"], noted):
            noted.rows.append((bias.number, layer.bias_rows(gradient)))

    def _wanted(self, parameter: nn.Parameter | None, noted: _Noted) -> bool:
        return parameter is not None and parameter.requires_grad and id(parameter) not in noted.skipped
