"""Which modules are blocks: the units of freezing, found from the module tree and the traced dataflow.

No table per architecture. Going down from the root:

- a plain container (Sequential, ModuleList, ModuleDict) and the root, with what it merely wraps, are opened;
- a module that holds a run of like units with two weights or more each is a stage, and opened: two or more in a row
  if nothing but one tensor passes from each to the next, three or more if other tensors pass by (dense connections);
- a module of towers side by side (pictures and words), which hold such runs each, is opened; their layers are blocks
  in the order of execution;
- of the rest, a module whose class occurs several times (a residual block, a transformer layer) or inside which
  several tensors are alive at once (a skip connection, attention) is one unit;
- what remains is a chain written as one class (a stem, a wrapper), and opened; at the bottom, a layer is a unit.

Layers without a weight (norms, scales, class tokens) join a neighbour. At single-layer granularity every
module that reads a weight itself is a unit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from torch import nn

from budgeted.budget.trace import Trace

Granularity = Literal["block", "layer"]
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
# a parameter used in one of these is a weight; scales, shifts, tokens and positions are not
_PRODUCTS = frozenset(("convolution", "linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "mv", "embedding"))


@dataclass(slots=True)
class Unit:
    """A module (or the parameters that a module uses directly), with the operators that read its parameters."""

    name: str
    layer: bool  # a single layer, not a composite
    readers: list[int] = field(default_factory=list)  # operators that read a parameter, in order
    parameters: set[int] = field(default_factory=set)
    weighted: bool = False  # one of them is a weight of a product or a look-up


def find_units(model: nn.Module, trace: Trace, granularity: Granularity) -> tuple[list[Unit], dict[int, str]]:
    """The units in order of execution, and the unit's name for every operator that lies in one."""
    uses = parameter_uses(trace)
    weights = {
        parameter
        for parameter, ops in uses.items()
        if trace.parameters[parameter].ndim >= 2 and any(trace.ops[i].name in _PRODUCTS for i in ops)
    }
    tree = _Tree(model, trace, weights)
    owners = {path: tree.unit_of(path, granularity) for path in {op.path for op in trace.ops}}
    units: dict[str, Unit] = {}
    inside: dict[int, str] = {}
    for op in trace.ops:
        owner, layer = owners[op.path]
        read = [value.parameter for value in op.inputs if value.parameter is not None]
        if owner is None:  # the opened module's own work: a unit only where it reads parameters
            if not read:
                continue
            owner, layer = trace.parameter_names[read[0]], True
        inside[op.index] = owner
        if not read:
            continue
        unit = units.setdefault(owner, Unit(owner, layer))
        unit.readers.append(op.index)
        unit.parameters.update(read)
        unit.weighted = unit.weighted or not weights.isdisjoint(read)
    return list(units.values()), inside


class _Tree:
    """The module tree as executed: who is called in whom, who reads parameters, what passes by.

    Everything about one module is found once: a deep net asks for it from each of its layers.
    """

    def __init__(self, model: nn.Module, trace: Trace, weights: set[int]) -> None:
        self.trace = trace
        self.modules = dict(model.named_modules())
        self.readers = Counter(op.path for op in trace.ops if any(value.parameter is not None for value in op.inputs))
        self.bearing: set[str] = set()  # modules under which a parameter is read
        for path in self.readers:
            self.bearing.update(("", *_ancestors(path)))
        self._children_of: dict[str, list[str]] = {}
        self._is_opened: dict[str, bool] = {}
        self._runs: dict[str, int] = {}
        self._weights = _weights_below(trace, weights)
        self.classes = Counter(type(module) for path, module in self.modules.items() if self._children(path) and path)
        self.span: dict[str, tuple[int, int]] = {}
        for path, start, end in trace.calls:
            self.span.setdefault(path, (start, end))
        self._learned = _depends_on_parameters(trace)
        self.roots = {""}  # the root, and what it merely wraps
        inner = ""
        while not self.readers[inner] and len(children := self._children(inner)) == 1:
            self.roots.add(inner := children[0])

    def unit_of(self, path: str, granularity: Granularity) -> tuple[str | None, bool]:
        """The unit that a module at `path` lies in (None: it is opened) and whether that is a single layer."""
        if granularity == "layer":
            return (path, True) if path and not self._children(path) else (None, True)
        for ancestor in _ancestors(path):
            if not self._opened(ancestor):
                return ancestor, not self._children(ancestor)
        return None, True

    def _opened(self, path: str) -> bool:
        if path not in self._is_opened:
            self._is_opened[path] = self._opens(path)
        return self._is_opened[path]

    def _opens(self, path: str) -> bool:
        children = self._children(path)
        if not children:
            return path == ""
        if path in self.roots:
            return True
        if type(self.modules[path]) in _CONTAINERS:
            return True
        chain = self._is_chain(path, children)
        if self._longest_run(path) >= (2 if chain else 3):
            return True
        alone = self.classes[type(self.modules[path])] < 2
        if alone and sum(self._holds_run(child) for child in children) >= 2:  # towers side by side
            return True
        if self.readers[path]:  # works with parameters of its own between those of its children
            return False
        return chain and alone

    def _children(self, path: str) -> list[str]:
        if path not in self._children_of:
            prefix = f"{path}." if path else ""
            names = [prefix + name for name, _ in self.modules[path].named_children()]
            self._children_of[path] = [name for name in names if name in self.bearing]
        return self._children_of[path]

    def _longest_run(self, path: str) -> int:
        """Like units with two weights or more each that the module holds, directly or in plain containers."""
        if path not in self._runs:
            found: Counter[type] = Counter()
            pending = list(self._children(path))
            while pending:
                child = pending.pop()
                if type(self.modules[child]) in _CONTAINERS:
                    pending += self._children(child)
                elif self._weights.get(child, 0) >= 2:
                    found[type(self.modules[child])] += 1
            self._runs[path] = max(found.values(), default=0)
        return self._runs[path]

    def _holds_run(self, path: str) -> bool:
        """Is there a run of like units at or below `path`?"""
        return self._longest_run(path) >= 2 or any(self._holds_run(child) for child in self._children(path))

    def _is_chain(self, path: str, children: list[str]) -> bool:
        """Does just one learned tensor pass from each child to the next?"""
        _, end = self.span.get(path, (0, 0))
        boundaries = sorted(self.span[child][0] for child in self._direct(children) if child in self.span)[1:]
        return not boundaries or max(self._passing(boundaries, end)) <= 1

    def _direct(self, children: list[str]) -> list[str]:
        """Children, with plain containers that are never called themselves (ModuleList) replaced by theirs."""
        direct: list[str] = []
        for child in children:
            if child in self.span or type(self.modules[child]) not in _CONTAINERS:
                direct.append(child)
            else:
                direct += self._direct(self._children(child))
        return direct

    def _passing(self, boundaries: list[int], end: int) -> list[int]:
        """For each operator: learned values that exist before it and are read in the module from there on."""
        last_read: dict[int, tuple[int, int]] = {}  # value -> when it was made, when it is read last
        for op in self.trace.ops[boundaries[0] : end]:
            for value in op.inputs:
                if id(value) in self._learned and value.from_input:
                    last_read[id(value)] = (-1 if value.producer is None else value.producer, op.index)
        changes = [0] * (len(boundaries) + 1)
        for made, read in last_read.values():
            changes[bisect_right(boundaries, made)] += 1  # the first boundary after it was made
            changes[max(bisect_right(boundaries, made), bisect_right(boundaries, read))] -= 1
        return list(accumulate(changes))[:-1]


def _weights_below(trace: Trace, weights: set[int]) -> dict[str, int]:
    """For every module how many weights are read at or below it."""
    read: dict[str, set[int]] = {}
    for op in trace.ops:
        found = {value.parameter for value in op.inputs if value.parameter in weights and value.parameter is not None}
        for path in _ancestors(op.path) if found else ():
            read.setdefault(path, set()).update(found)
    return {path: len(found) for path, found in read.items()}


def _ancestors(path: str) -> list[str]:
    """From the outermost module inside the root down to the module itself."""
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _depends_on_parameters(trace: Trace) -> set[int]:
    learned: set[int] = set()
    for op in trace.ops:
        if any(value.parameter is not None or id(value) in learned for value in op.inputs):
            learned.update(id(value) for value in op.outputs)
    return learned


def parameter_uses(trace: Trace) -> dict[int, list[int]]:
    """For every parameter the operators that apply it to data, reached through views and reshapes of it.

    Learned queries and latents are data too: a product of them with a weight is a use of the weight.
    """
    carries: dict[int, set[int]] = {}  # value -> parameters that it is made of, as long as no data is in it
    data: set[int] = set()  # values made by such products
    uses: dict[int, list[int]] = {}
    for op in trace.ops:
        parameters: set[int] = set()
        for value in op.inputs:
            if value.parameter is not None:
                parameters.add(value.parameter)
            parameters |= carries.get(id(value), set())
        reads_data = any(value.from_input or id(value) in data for value in (*op.inputs, *op.outputs))
        if reads_data or (op.name in _PRODUCTS and len(parameters) > 1):
            data.update(id(value) for value in op.outputs)
            for parameter in parameters:
                uses.setdefault(parameter, []).append(op.index)
        elif parameters:
            for value in op.outputs:
                carries[id(value)] = parameters
    return uses


def depends(trace: Trace, later: int, earlier: int) -> bool:
    """Does operator `later` read, directly or not, what operator `earlier` made?"""
    reached = {id(value) for value in trace.ops[earlier].outputs}
    for op in trace.ops[earlier + 1 : later + 1]:
        if any(id(value) in reached for value in op.inputs):
            if op.index == later:
                return True
            reached.update(id(value) for value in op.outputs)
    return False
