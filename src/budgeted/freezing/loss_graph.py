"""The loss as autograd wrote it down: what it costs, which outputs of the model it reads, whether it is cross-entropy.

A loss is computed in the user's own loop, outside the traced forward. By the time of the backward its graph is there:
every node knows its operator, its shapes and what it saved. So no one need tell what the loss is. The model's
outputs are marked on their own nodes, and the walk from the loss stops there; a mark lives and dies with its graph.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes

from budgeted.budget import NOTHING, Cost, UnpricedOperator, UnpricedOperatorWarning, prices
from budgeted.budget.pricing import Unpriced
from budgeted.budget.refusals import UnpricedBackward
from budgeted.budget.trace import Op, Value

_counter = itertools.count()
_SCALED = ("MulBackward0", "MulBackward1", "DivBackward0")
_SAME_NUMBERS = frozenset(
    ("ToCopyBackward0", "AliasBackward0", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0",
     "CloneBackward0", "SqueezeBackward0", "UnsqueezeBackward0")
)  # fmt: skip
_WEIGHTED = frozenset(("mm", "addmm", "convolution", "embedding"))
_LEAF = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True)
class LossPrice:
    """What the loss costs beside the model, and the outputs that it reads: (number of the forward, output)."""

    forward: Cost
    backward: Cost
    outputs: frozenset[tuple[int, int]]
    parameters: tuple[nn.Parameter, ...]
    """of the loss itself (a learned temperature, another module's): they are trained whatever is frozen"""


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """A plain cross-entropy of the head's own output, as found in the graph."""

    log_probabilities: Tensor
    """one row per sample or token"""
    targets: Tensor
    ignored: int
    factor: float
    """what the loss is multiplied by, against the mean over the rows"""


class LossGraph:
    """Marks what the model and its head put out, and reads the graph between there and the loss."""

    def __init__(self, model: nn.Module, unpriced: Unpriced = "refuse") -> None:
        self._model = model
        self._unpriced: Unpriced = unpriced
        self._output = f"budgeted.output.{next(_counter)}"
        self._head = f"budgeted.head.{next(_counter)}"
        self._feature = f"budgeted.feature.{next(_counter)}"
        self._blocks: set[int] = set()  # whose features were marked
        self._prices: dict[tuple[object, ...], tuple[Cost, Cost]] = {}

    def mark_outputs(self, number: int, outputs: list[Tensor]) -> None:
        """`outputs` are those of one forward, in the order in which the trace lists its roots."""
        for index, tensor in enumerate(outputs):
            if tensor.grad_fn is not None:
                marks = _notes(tensor.grad_fn).setdefault(self._output, {})
                marks[tensor.output_nr] = (number, index)

    def mark_head(self, output: object) -> None:
        if isinstance(output, Tensor) and output.grad_fn is not None:
            _notes(output.grad_fn)[self._head] = True

    def mark_feature(self, block: int, feature: Tensor) -> None:
        """What a block inside the model puts out: the walk stops there too."""
        if feature.grad_fn is not None:
            _notes(feature.grad_fn).setdefault(self._feature, {})[feature.output_nr] = block
            self._blocks.add(block)

    @property
    def marks_features(self) -> bool:
        return bool(self._blocks)

    def to_feature(self, loss: Tensor, feature: Tensor, others: frozenset[int] = frozenset()) -> Cost:
        """A backward of the loss to one feature: none is run to the others that are marked, nor to other forwards."""
        own = None if feature.grad_fn is None else _notes(feature.grad_fn).get(self._feature, {}).get(feature.output_nr)
        return self.price(loss, frozenset(block for block in self._blocks if block != own), others).backward

    def price(
        self, loss: Tensor, unreached: frozenset[int] = frozenset(), others: frozenset[int] = frozenset()
    ) -> LossPrice:
        """Walk from the loss to the model's outputs and to marked features, and price what lies between. No gradient is
        run to the features of blocks that are `unreached`, nor to the outputs of the forwards with numbers `others`."""
        steps: list[tuple[Node, Op]] = []
        found: set[tuple[int, int]] = set()
        leaves: dict[int, nn.Parameter] = {}
        arrivals: dict[tuple[int, int], tuple[int, int]] = {}  # gradients that meet at a value, and its elements
        needed = _Needed(self._output, self._feature, unreached, others)
        seen: set[Node] = set()
        pending = [] if loss.grad_fn is None else [(loss.grad_fn, loss.output_nr)]
        while pending:
            node, number = pending.pop()
            marks = _notes(node).get(self._output, {})
            if number in marks:
                found.add(marks[number])
                continue
            if node in seen or number in _notes(node).get(self._feature, {}):
                continue
            seen.add(node)
            if node.name() == _LEAF:
                leaves[id(node.variable)] = node.variable  # type: ignore[attr-defined]
                continue
            op = _operator(node)
            self._refuse_inner_features(node, op)
            steps.append((node, op))
            for below, nr in _below(node):
                if needed(below, nr):
                    # a feature gets another gradient from the block behind it
                    first = int(nr in _notes(below).get(self._feature, {}))
                    count, _ = arrivals.get((id(below), nr), (first, 0))
                    arrivals[(id(below), nr)] = (count + 1, _elements(below, nr))
                pending.append((below, nr))
        sums = sum((count - 1) * elements for count, elements in arrivals.values())
        wanted = [tuple(below is not None and needed(below, nr) for below, nr in n.next_functions) for n, _ in steps]
        for parameter in self._model.parameters() if leaves else ():
            leaves.pop(id(parameter), None)  # a penalty on the model's own: the frozen set rules
        layers = bool(leaves)  # rule `paper` counts layers, so a loss that has none is free under it
        key = (
            sums,
            layers,
            *((op.name, op.out.shape, want, *(value.shape for value in op.inputs))
              for (_, op), want in zip(steps, wanted, strict=True)),
        )  # fmt: skip
        if key not in self._prices:
            forward, backward = _price(steps, wanted, sums, self._unpriced)
            self._prices[key] = (forward, backward) if layers else (Cost(0, forward.real), Cost(0, backward.real))
        return LossPrice(*self._prices[key], frozenset(found), tuple(leaves.values()))

    def cross_entropy(self, loss: Tensor) -> CrossEntropy | None:
        """The plain cross-entropy that the loss is, up to a constant factor; None if it is anything else."""
        node, factor = loss.grad_fn, 1.0
        while node is not None and not node.name().startswith("NllLoss"):
            if node.name() in _SCALED:
                scale = _constant_factor(node)
                if scale is None:
                    return None
                factor *= scale
            elif node.name() not in _SAME_NUMBERS:
                return None
            node = _only(node)
        if node is None or node.name() != "NllLossBackward0" or _saved(node, "weight") is not None:
            return None
        reduction, targets, above = _saved(node, "reduction"), _saved(node, "target"), _only(node)
        if above is None or above.name() != "LogSoftmaxBackward0" or reduction not in (1, 2):
            return None
        logarithms = _saved(above, "result")
        if logarithms.ndim != 2 or _signed(_saved(above, "dim")) not in (1, -1):
            return None
        if not self._is_heads_output(above, logarithms.shape[1]):
            return None
        ignored = _signed(_saved(node, "ignore_index"))
        if reduction == 2:  # a sum: the mean times the rows that count
            factor *= int((targets != ignored).sum())
        return CrossEntropy(logarithms, targets, ignored, factor)

    def _is_heads_output(self, log_softmax: Node, classes: int) -> bool:
        node = _only(log_softmax)
        while node is not None and self._head not in _notes(node):
            if node.name() not in _SAME_NUMBERS or _shape(node)[-1:] != (classes,):
                return False
            node = _only(node)
        return node is not None and _shape(node)[-1:] == (classes,)

    def _refuse_inner_features(self, node: Node, op: Op) -> None:
        """A loss on features from inside the model has parts of the model in its graph: they would be paid twice."""
        if op.name not in _WEIGHTED:
            return
        for below, _ in _below(node):
            while below.name() in ("TBackward0", "TransposeBackward0", *_SAME_NUMBERS) and (deeper := _only(below)):
                below = deeper
            if below.name() == _LEAF and any(getattr(below, "variable", None) is p for p in self._model.parameters()):
                raise UnpricedBackward(
                    "the loss reads something else than the model's outputs (a feature from inside it?), so it has no "
                    "price: return from the model what the loss needs, or give loss=function(output)"
                )


class _Needed:
    """Whether a gradient is run to a value: something that is trained lies behind it."""

    def __init__(self, output: str, feature: str, unreached: frozenset[int], others: frozenset[int]) -> None:
        self._output, self._feature, self._unreached, self._others = output, feature, unreached, others
        self._known: dict[tuple[Node, int], bool] = {}

    def __call__(self, node: Node, number: int) -> bool:
        if not self._unreached and not self._others:
            return True
        if (node, number) not in self._known:
            notes = _notes(node)
            block = notes.get(self._feature, {}).get(number)
            if block is not None:
                answer = block not in self._unreached
            elif number in notes.get(self._output, {}):
                answer = notes[self._output][number][0] not in self._others
            elif node.name() == _LEAF:
                answer = True
            else:
                answer = any(self(below, nr) for below, nr in _below(node))
            self._known[(node, number)] = answer
        return self._known[(node, number)]


def _notes(node: Node) -> dict[str, Any]:
    """A dictionary that lives as long as the node does."""
    return cast(dict[str, Any], node.metadata)


def _below(node: Node) -> Iterator[tuple[Node, int]]:
    return ((below, number) for below, number in node.next_functions if below is not None)


def _only(node: Node) -> Node | None:
    """The one node below, if just one operand has a gradient."""
    below = [found for found, _ in _below(node)]
    return below[0] if len(below) == 1 else None


def _elements(node: Node, number: int) -> int:
    return Value(_shape(node, number), True).numel


def _shape(node: Node, number: int = 0) -> tuple[int, ...]:
    """Shape of what the node's operator put out."""
    return tuple(node._input_metadata[number].shape)


def _saved(node: Node, name: str) -> Any:
    return getattr(node, f"_saved_{name}")


def _saved_shape(node: Node, names: list[str], place: int) -> tuple[int, ...] | None:
    """Of an operand without a gradient, where the other one's gradient needs it."""
    saved = getattr(node, f"_saved_{names[place]}", None) if place < len(names) else None
    return tuple(saved.shape) if isinstance(saved, Tensor) else None


def _signed(number: int) -> int:
    """Saved integers come out unsigned."""
    return number - 2**64 if number >= 2**63 else number


def _constant_factor(node: Node) -> float | None:
    """The number that a loss is multiplied by; None if it has a gradient itself or is more than a number."""
    if _only(node) is None:
        return None
    other = _saved(node, "other")
    if other is None and node.name() == "MulBackward0":
        other = _saved(node, "self")
    if other is None or (isinstance(other, Tensor) and other.numel() != 1):
        return None
    with _disable_current_modes():  # a mode would be given the number itself, where it expects a tensor
        factor = float(other)
    return 1 / factor if node.name() == "DivBackward0" and factor else factor


def _operator(node: Node) -> Op:
    """The operator behind a node, with shapes; what is neither differentiated nor saved counts as its output."""
    name = _operator_name(node.name())
    shape = _shape(node)
    out = Value(shape, True)
    names = _tensor_arguments(name)
    inputs = tuple(
        Value(_shape(below, number) if below is not None else _saved_shape(node, names, place) or shape, True,
              from_input=True)
        for place, (below, number) in enumerate(node.next_functions)
    )  # fmt: skip
    arguments: dict[str, Any] = dict(zip(names, inputs, strict=False))
    if name in ("add", "sub", "rsub"):
        arguments["alpha"] = getattr(node, "_saved_alpha", 1)
    if name.startswith("nll_loss"):
        arguments["target"] = Value(tuple(_saved(node, "target").shape), False)
    return Op(name, 0, arguments, inputs, (out,), "", (), True)


@functools.cache
def _operator_name(of_node: str) -> str:
    found = re.fullmatch(r"(\w+)Backward\d+", of_node)
    if found is None:
        raise UnpricedBackward(
            f"the loss uses the custom function {of_node.removesuffix('Backward')}, whose backward has no price "
            "(torch.autograd.Function): write it with torch operators, or give loss=None to leave the loss out"
        )
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", found[1]).lower()
    words = re.sub(r"(\d)_d\b", r"\1d", words)
    for name in (
        words,
        f"_{words}",
        f"{words}_forward",
        f"native_{words}",
        words.replace("_loss2d", "_loss2d_forward"),
    ):
        if prices.find(name) is not None:
            return name
    return words


@functools.cache
def _tensor_arguments(name: str) -> list[str]:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return ["self", "other"]
    schema = getattr(packet, packet.overloads()[0])._schema
    return [argument.name for argument in schema.arguments if "Tensor" in str(argument.type)]


def _price(
    steps: list[tuple[Node, Op]], wanted: list[tuple[bool, ...]], sums: int, unpriced: Unpriced
) -> tuple[Cost, Cost]:
    missing = list(dict.fromkeys(f"{op.name} (in the loss)" for _, op in steps if prices.find(op.name) is None))
    if missing and unpriced == "refuse":
        raise UnpricedOperator(missing)
    if missing:
        warnings.warn(f"left out of the price: {', '.join(missing)}", UnpricedOperatorWarning, stacklevel=3)
    forward, backward = NOTHING, Cost(0, sums)
    for (_, op), wants in zip(steps, wanted, strict=True):
        function = prices.find(op.name)
        if function is None:
            continue
        price = function(op)
        forward += Cost(price.paper_forward, price.forward)
        if any(wants):
            gradients = sum(cost for cost, want in zip(price.gradients, wants, strict=False) if want)
            backward += Cost(price.paper_input, price.shared + gradients)
    return forward, backward
