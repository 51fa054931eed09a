"""Prices of a training step, cached by input shape and frozen set.

The first few input shapes are traced and the others follow from them (`priced_shapes`); every frozen set is priced from
a trace by arithmetic.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from budgeted.budget import BlockPrices, Cost, Pricer, Rule, Trace, trace
from budgeted.budget.compiled import compiled_paths
from budgeted.budget.lifted import Sizes
from budgeted.budget.pricing import Unpriced
from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain, NoBlockChain, chain_of_trace
from budgeted.freezing.priced_shapes import PricedShape, PricedShapes, Traced
from budgeted.freezing.units import Granularity

_VALUES = (bool, int, float, str, type(None))
# what torch keeps in every module; that hooks of the backward are there shows in the trace
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"_is_full_backward_hook"}


@dataclass(frozen=True)
class Forward:
    """What the price of a forward depends on, without its data: shapes, plain arguments, modes, what is trained."""

    key: tuple[object, ...]
    inputs: tuple[Any, ...] = field(compare=False, repr=False)  # tensors without data
    keywords: Mapping[str, Any] = field(compare=False, repr=False)
    sizes: Sizes = field(compare=False, repr=False)  # of the inputs
    kind: tuple[object, ...] = field(compare=False, repr=False)  # the key without the sizes
    read: frozenset[int] | None = None  # outputs that the loss reads; None: all of them


@dataclass(slots=True)
class _Shape:
    """One input shape, and what was asked of it."""

    found: PricedShape
    most: int
    by_set: dict[frozenset[int], BlockPrices] = field(default_factory=dict)
    saved: dict[Rule, tuple[int, ...]] = field(default_factory=dict)


class StepPrices:
    """Prices of forward, loss and backward of a model, per block, for any input shape and frozen set."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any], Tensor] | None = None,
        granularity: Granularity = "block",
        unpriced: Unpriced = "refuse",
        always: Collection[str] = (),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise BudgetedError(f"a {type(model).__name__} is no torch module: give an nn.Module")
        self.model = model
        self.loss = loss
        self.granularity: Granularity = granularity
        self.unpriced: Unpriced = unpriced
        self.always = always
        self._shapes: dict[Forward, _Shape] = {}
        self._forwards: dict[tuple[object, ...], Forward] = {}
        self._kinds: dict[object, PricedShapes] = {}
        self._traces: dict[tuple[object, ...], Trace] = {}
        self._structure: object = None
        self._parameter_sizes: Sizes = ()
        self.forget()

    def forward(self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Forward:
        """Name a forward by what its price depends on."""
        inputs, keywords = tuple(inputs), keywords or {}
        leaves = pytree.tree_leaves((inputs, dict(keywords))) if keywords or len(inputs) != 1 else inputs
        facts = [self._facts(leaf) for leaf in leaves]
        rest = (
            *sorted(keywords),
            bytes([module.training for module in self._modules]),
            bytes([parameter.requires_grad for parameter in self._parameters]),
        )
        key = (*facts, *rest)
        found = self._forwards.get(key)
        if found is None:
            given, named = pytree.tree_map_only(Tensor, _without_data, (inputs, dict(keywords)))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            kinds = [
                (leaf.ndim, *fact[1:]) if isinstance(leaf, Tensor) else fact
                for leaf, fact in zip(leaves, facts, strict=True)
            ]
            sizes = tuple(int(size) for tensor in tensors for size in tensor.shape)
            found = self._forwards[key] = Forward(key, given, named, sizes, (*kinds, *rest))
        return found

    def reading(self, forward: Forward, outputs: frozenset[int]) -> Forward:
        """The same forward under a loss that reads just these of its outputs."""
        everything = len(self._at(forward).found.chain.trace.roots)
        return forward if len(outputs) == everything else replace(forward, read=outputs)

    def chain(self, forward: Forward) -> BlockChain:
        """The blocks of this forward; the chain's trace may be that of another shape."""
        return self._at(forward).found.chain

    def of(self, forward: Forward, frozen: Collection[int] = ()) -> BlockPrices:
        """Prices per block of one step with these blocks frozen."""
        shape = self._at(forward)
        key = frozenset(frozen)
        if key not in shape.by_set:
            shape.by_set[key] = shape.found.prices(key)
        return shape.by_set[key]

    def saved(self, forward: Forward, rule: Rule) -> tuple[int, ...]:
        """Backward saved by freezing the first n blocks, for n from 0 to L-1."""
        shape = self._at(forward)
        if rule not in shape.saved:
            shape.saved[rule] = shape.found.saved(rule)
        return shape.saved[rule]

    def most(self, forward: Forward) -> int:
        """Most blocks that may rest, from the stem on: those before the last one that is trained."""
        return self._at(forward).most

    def to_feature(self, forward: Forward) -> Cost:
        """Running the loss and the head backwards to the last feature, and no further."""
        return self._at(forward).found.to_feature()

    def forget(self) -> None:
        """The model changed: look at it anew. What was learnt of a head that merely grew still holds."""
        self._modules = list(self.model.modules())
        named = dict(self.model.named_parameters())
        self._parameters = list(named.values())
        self._home = self._parameters[0].device.type if self._parameters else "cpu"
        self._shapes.clear()
        self._forwards.clear()
        self._traces.clear()
        sizes = tuple(int(size) for parameter in self._parameters for size in parameter.shape)
        structure = (list(named), [parameter.ndim for parameter in self._parameters], list(map(_nature, self._modules)))
        if structure == self._structure:
            for shapes in self._kinds.values():
                shapes.replace_parameters(self._parameters)
        else:
            self._kinds.clear()
        self._structure, self._parameter_sizes = structure, sizes

    def _facts(self, leaf: object) -> tuple[object, ...]:
        """What of an argument prices depend on; a tensor without data stands for one beside the model."""
        if isinstance(leaf, Tensor):
            return leaf.shape, leaf.dtype, self._home if leaf.is_meta else leaf.device.type
        return (leaf if isinstance(leaf, _VALUES) else type(leaf),)

    def _at(self, forward: Forward) -> _Shape:
        shape = self._shapes.get(forward)
        if shape is None:
            shapes = self._kinds.setdefault((forward.kind, forward.read), PricedShapes())
            sizes = (*forward.sizes, *self._parameter_sizes)
            found: PricedShape | None = shapes.derive(sizes)
            if found is None:
                with _uncollected():
                    found = self._trace(forward, sizes)
                    shapes.add(found)
            shape = self._shapes[forward] = _Shape(found, found.chain.last_trained())
        return shape

    def _trace(self, forward: Forward, sizes: Sizes) -> Traced:
        traced = self._traces.get(forward.key)
        if traced is None:  # what other outputs are read of it is the same trace
            traced = self._traces[forward.key] = trace(self.model, forward.inputs, forward.keywords, self.loss)
        if forward.read is not None:
            traced = replace(traced, roots=[root for index, root in enumerate(traced.roots) if index in forward.read])
        chain = chain_of_trace(self.model, traced, self.granularity, self.always)
        return Traced(sizes, chain, Pricer(traced, chain.block_of, len(chain), self.unpriced, self._compiled(chain)))

    def _compiled(self, chain: BlockChain) -> list[str | None]:
        """Per operator the compiled module that it lies in; one that holds several blocks is refused."""
        paths = compiled_paths(self.model)
        if not paths:
            return []
        found = [next((p for p in paths if f"{op.path}.".startswith(f"{p}.")), None) for op in chain.trace.ops]
        for path in paths:
            inside = {block for block, name in zip(chain.block_of, found, strict=True) if name == path}
            weighted = [b for b in sorted(inside) if any(n.startswith(f"{path}.") for n in chain.blocks[b].parameters)]
            if len(weighted) > 1:
                first, second = (chain.blocks[block].name for block in weighted[:2])
                raise NoBlockChain(
                    f"{path} is compiled as a whole but holds several blocks ({first}, {second}), and a compiled "
                    "backward runs as a whole: compile each block by itself"
                )
        return found


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """A trace makes objects by the ten thousands, nearly all to stay: Python's search for garbage among them finds
    none, and goes through all that torch has loaded, which takes longer than the trace."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _nature(module: nn.Module) -> tuple[object, ...]:
    """What a module is and how it is set, apart from the sizes of its parameters."""
    sizes = {size for parameter in module._parameters.values() if parameter is not None for size in parameter.shape}
    found: list[object] = [id(module)]
    for name, value in vars(module).items():
        if name in _OF_EVERY_MODULE:
            continue
        plain = isinstance(value, tuple) and all(isinstance(item, _VALUES) for item in value)
        if plain or isinstance(value, _VALUES):
            found.append((name, "a parameter's size" if type(value) is int and value in sizes else value))
    return tuple(found)


def _without_data(tensor: Tensor) -> Tensor:
    """Shape, strides and dtype alone: a cached shape keeps no batch alive."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def cross_entropy_of(outputs: Any) -> Tensor:
    """Cross-entropy of a model's outputs with targets of the right shape, for pricing."""
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    logits = logits.reshape(-1, logits.shape[-1])
    targets = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
    return nn.functional.cross_entropy(logits, targets)
