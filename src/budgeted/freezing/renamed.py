"""What the blocks and parameters of a network that has changed were called before, so that averages can follow them.

A parameter is the one it was if it is the same object (a Sequential that got a layer in the middle numbers those behind
it anew), or if it has the name and the shape of one that is gone, rows aside (a head that grew). A block is the one it
was if at least half of its numbers are; where two are, it is the larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from budgeted.freezing.chain import BlockChain

Parameters = Mapping[str, nn.Parameter]


@dataclass(frozen=True)
class Before:
    """Old names by new ones; what is new is in neither."""

    blocks: Mapping[str, str]
    parameters: Mapping[str, str]


def as_it_was(chain: BlockChain) -> Before:
    """Nothing has changed."""
    return Before(
        {block.name: block.name for block in chain.blocks}, {name: name for name in chain.trace.parameter_names}
    )


def renamed(old: BlockChain, old_parameters: Parameters, new: BlockChain, parameters: Parameters) -> Before:
    """Which of the new blocks and parameters are which of the old ones."""
    names = _same_parameters(old_parameters, parameters)
    blocks: dict[str, tuple[int, str]] = {}  # by old block: how much of it is where
    for block in new.blocks:
        found: Counter[str] = Counter()
        for name in block.parameters:
            for other in old.blocks:
                if names.get(name) in other.parameters:
                    found[other.name] += parameters[name].numel()
        for was, elements in found.most_common(1):
            enough = 2 * elements >= sum(parameters[name].numel() for name in block.parameters)
            if enough and elements > blocks.get(was, (0, ""))[0]:
                blocks[was] = elements, block.name
    return Before({now: was for was, (_, now) in blocks.items()}, names)


def _same_parameters(old: Parameters, new: Parameters) -> dict[str, str]:
    by_identity = {id(parameter): name for name, parameter in old.items()}
    here = {id(parameter) for parameter in new.values()}
    found: dict[str, str] = {}
    for name, parameter in new.items():
        was = by_identity.get(id(parameter))
        if was is None and name in old and id(old[name]) not in here and old[name].shape[1:] == parameter.shape[1:]:
            was = name
        if was is not None:
            found[name] = was
    return found
