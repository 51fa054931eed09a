"""The ordered block chain of a feed-forward module: stem first, head last.

Every operator and every parameter of the traced forward belongs to a block. Freezing needs no more than the order: the
backward pass of a frozen prefix is not run, whatever skips or dense connections lie in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from budgeted.budget.compiled import INNER
from budgeted.budget.trace import Trace, Value, trace
from budgeted.errors import BudgetedError
from budgeted.freezing.units import Granularity, Unit, depends, find_units, parameter_uses

# work between the last block and the head that belongs to the head, as the paper has it: [pool, classifier]
_BEFORE_HEAD = frozenset(
    ("mean", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "max_pool2d_with_indices", "amax", "view",
     "_unsafe_view", "reshape", "flatten", "select", "slice", "squeeze", "index", "permute", "transpose", "clone",
     "native_dropout", "detach", "alias", "t", "_to_copy")
)  # fmt: skip


class NoBlockChain(BudgetedError):
    """The module has no order of blocks that could be frozen; the reason is in the line."""


@dataclass(frozen=True, slots=True)
class Block:
    """One unit of freezing: its name and the names of its parameters."""

    name: str
    parameters: tuple[str, ...]


@dataclass(slots=True)
class BlockChain:
    """The blocks in order, and which operator of the trace lies in which block."""

    blocks: tuple[Block, ...]
    block_of: list[int]  # per operator of the trace
    trace: Trace
    granularity: Granularity
    head: str  # module path of the last weighted layer
    feature: Value | None  # its input, the last feature
    feature_of: str | None = None  # module that puts it out, where the head is no module but a product in a forward
    shared: dict[str, tuple[int, ...]] = field(default_factory=dict)  # parameters of several blocks
    unused: tuple[str, ...] = ()  # parameters that the forward never reads
    always: frozenset[str] = frozenset()  # parameters that are trained whatever is frozen

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(block.name for block in self.blocks)

    def last_trained(self) -> int:
        """The last block with a parameter that is trained, which never rests: the head, unless that is not trained."""
        trained = {self.trace.parameter_names[index] for index in self.trace.trainable()}
        found = (number for number, block in enumerate(self.blocks) if not trained.isdisjoint(block.parameters))
        return max(found, default=len(self) - 1)

    def check(self, frozen: Collection[int]) -> frozenset[int]:
        """The set as it may be frozen: known blocks, and never the last one that trains nor what comes after it.

        Blocks of which all that is trained is trained always are left out of it.
        """
        last = self.last_trained() if frozen else 0
        for block in frozen:
            if not 0 <= block < last:
                others = f"choose from 0 to {last - 1}" if last else "nothing can be"
                what = "the head" if last == len(self) - 1 else "the last one that is trained"
                raise BudgetedError(
                    f"block {block} cannot be frozen: {others} (block {last} is {what}, {self.blocks[last].name!r})"
                )
        return frozenset(block for block in frozen if not (self.always and self._never_rests(block)))

    def _never_rests(self, block: int) -> bool:
        trained = {self.trace.parameter_names[index] for index in self.trace.trainable()}
        own = trained.intersection(self.blocks[block].parameters)
        return bool(own) and own <= self.always

    def frozen_parameters(self, frozen: Collection[int]) -> frozenset[str]:
        """Names of the parameters that rest when these blocks are frozen; a shared one only if all its blocks are."""
        names = {name for block in frozen for name in self.blocks[block].parameters} - self.always
        return frozenset(name for name in names if name not in self.shared or set(self.shared[name]) <= set(frozen))

    def trained(self, frozen: Collection[int]) -> frozenset[int]:
        """Indices into the trace's parameters of those that get a gradient."""
        resting = self.frozen_parameters(frozen)
        return frozenset(index for index in self.trace.trainable() if self.trace.parameter_names[index] not in resting)

    def modules_in(self, frozen: Collection[int]) -> frozenset[str]:
        """Paths of the modules whose work lies in these blocks."""
        return frozenset(op.path for op, block in zip(self.trace.ops, self.block_of, strict=True) if block in frozen)

    def changed(self, now: BlockChain) -> list[str]:
        """Names of the blocks that only one of the two chains has; all of them if they are in another order."""
        if self.blocks == now.blocks:
            return []
        different = set(self.blocks) ^ set(now.blocks)
        every = (*now.blocks, *self.blocks)
        return list(dict.fromkeys(block.name for block in every if block in different or not different))

    def owned(self, block: int) -> tuple[str, ...]:
        """Parameters counted with this block: a shared one belongs to the last block that uses it."""
        return tuple(
            name for name in self.blocks[block].parameters if name not in self.shared or self.shared[name][-1] == block
        )


def block_chain(
    model: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    granularity: Granularity = "block",
    always: Collection[str] = (),
) -> BlockChain:
    """Find the block chain by tracing the model's forward on (the shapes of) example inputs.

    always: names of modules, or of parts of their paths, that are trained whatever is frozen.
    """
    return chain_of_trace(model, trace(model, inputs, keywords), granularity, always)


def chain_of_trace(
    model: nn.Module, traced: Trace, granularity: Granularity = "block", always: Collection[str] = ()
) -> BlockChain:
    _refuse_recurrence(model, traced)
    units, inside = find_units(model, traced, granularity)
    if not any(unit.weighted for unit in units):
        raise NoBlockChain(f"{type(model).__name__} has no layer with a weight: there is nothing to freeze")
    groups = _join_light_units(units)
    read = {parameter for unit in units for parameter in unit.parameters}
    if len(groups) < 2 and len(read) == len(traced.parameter_names):  # of a model that is run in part, the head will do
        raise NoBlockChain(
            f"{type(model).__name__} is a single block ({groups[0][0].name!r}): nothing to freeze below its head"
        )
    number = {unit.name: index for index, group in enumerate(groups) for unit in group}
    block_of = _assign(traced, inside, number, len(groups) - 1)
    users: dict[str, set[int]] = {}
    for index, group in enumerate(groups):
        for unit in group:
            for parameter in unit.parameters:
                users.setdefault(traced.parameter_names[parameter], set()).add(index)
    blocks = tuple(
        Block(_name(group), tuple(name for name in traced.parameter_names if index in users.get(name, ())))
        for index, group in enumerate(groups)
    )
    last_weight = max(op for unit in groups[-1] if unit.weighted for op in unit.readers)
    head = traced.ops[last_weight].path
    feature, feature_of = _input_of(traced, head), None
    if not head or any(op.path.startswith(f"{head}.") for op in traced.ops):
        feature, feature_of = _functional_input(traced, last_weight)
    return BlockChain(
        blocks=blocks,
        block_of=block_of,
        trace=traced,
        granularity=granularity,
        head=head,
        feature=feature,
        feature_of=feature_of,
        shared={name: tuple(sorted(found)) for name, found in users.items() if len(found) > 1},
        unused=tuple(name for name in traced.parameter_names if name not in users),
        always=_always(traced, always),
    )


def _always(traced: Trace, wanted: Collection[str]) -> frozenset[str]:
    """Parameters under the modules of these names; `projector` stands for any path with that part."""
    found: set[str] = set()
    for name in (wanted,) if isinstance(wanted, str) else wanted:
        here = {parameter for parameter in traced.parameter_names if f".{name}." in f".{parameter}."}
        if not here:
            raise BudgetedError(f"always: no parameter lies under a module {name!r}: give a part of a module's path")
        found |= here
    return frozenset(found)


def _input_of(traced: Trace, path: str) -> Value | None:
    """The first data that a module's last call reads from outside."""
    start, end = next(((a, b) for name, a, b in reversed(traced.calls) if name == path), (0, 0))
    for op in traced.ops[start:end]:
        for value in op.inputs:
            if value.from_input and (value.producer is None or value.producer < start):
                return value
    return None


def _functional_input(traced: Trace, reader: int) -> tuple[Value | None, str | None]:
    """What a product in a composite module's own forward reads, and the module whose output that is."""
    read = {value.parameter for value in traced.ops[reader].inputs if value.parameter is not None}
    uses = [op for parameter, ops in parameter_uses(traced).items() if parameter in read for op in ops]
    product = max(uses, default=reader)
    op = traced.ops[product]
    while True:
        value = next((value for value in op.inputs if value.from_input), None)
        if value is None or value.producer is None:
            return value, None
        op, inner = traced.ops[value.producer], traced.ops[product].path
        made_by = [path for path, _, end in traced.calls if path and end == op.index + 1 and path != inner]
        if made_by:
            return value, made_by[-1]  # the outermost ends last
        if op.name not in _BEFORE_HEAD:
            return value, None


def _refuse_recurrence(model: nn.Module, traced: Trace) -> None:
    """A parameter that one module applies again to what it made itself has no place in a chain."""
    for path, module in model.named_modules():
        if isinstance(module, nn.RNNBase):  # one fused operator: the recurrence is not seen in the trace
            raise _recurrent(model, f"{path} is a {type(module).__name__}")
    for parameter, ops in parameter_uses(traced).items():
        by_module: dict[str, list[int]] = {}
        for index in ops:
            by_module.setdefault(traced.ops[index].path, []).append(index)
        for path, calls in by_module.items():
            if any(depends(traced, later, earlier) for earlier, later in itertools.combinations(calls, 2)):
                name = traced.parameter_names[parameter]
                where = path or "its forward"
                raise _recurrent(model, f"{where} applies {name} {len(calls)} times, to its own output")


def _recurrent(model: nn.Module, reason: str) -> NoBlockChain:
    return NoBlockChain(f"{type(model).__name__} is recurrent ({reason}): layer freezing needs a feed-forward net")


def _join_light_units(units: list[Unit]) -> list[list[Unit]]:
    """Units without a weight join a neighbour: the layer before them, or the unit that they prepare.

    A norm that follows a single layer belongs to it; one that follows a whole block (pre-norm nets) belongs to the
    next.
    """
    groups: list[list[Unit]] = []
    waiting: list[Unit] = []
    for unit in units:
        if unit.weighted:
            groups.append([*waiting, unit])
            waiting = []
        elif groups and not waiting and groups[-1][-1].layer:
            groups[-1].append(unit)
        else:
            waiting.append(unit)
    if waiting:
        groups[-1].extend(waiting)
    return groups


def _name(group: list[Unit]) -> str:
    name = next(unit.name for unit in group if unit.weighted)
    return name.replace(f".{INNER}", "")


def _assign(traced: Trace, inside: dict[int, str], number: dict[str, int], head: int) -> list[int]:
    """Operators outside every unit go with the block before them; pooling in front of the head goes with the head."""
    block_of: list[int] = []
    current = 0
    for op in traced.ops:
        name = inside.get(op.index)
        current = number.get(name, current) if name is not None else current
        block_of.append(current)
    first_of_head = next((i for i, block in enumerate(block_of) if block == head), len(block_of))
    for index in range(first_of_head - 1, -1, -1):
        if traced.ops[index].name not in _BEFORE_HEAD or inside.get(index) in number:
            break
        block_of[index] = head
    return block_of
