"""A model whose last stage is repeated when a task ends: old copies rest, the newest is trained, a head reads them all.

    model = Expandable(model, problem.example(2))
    model.end_task()

The last stage is the last module before the head that the model calls by itself, or the last of a row of stages. What
lies between it and the head must take any number of channels: pooling does, a norm does not. A model that cannot be
split so is refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain, block_chain
from budgeted.network.evaluation_mode import evaluating


class SideBySide(nn.Module):
    """Stages that read the same maps; their channels are put behind one another. All but the newest rest."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stages = nn.ModuleList([stage])
        # without numbers and hooks, and no module of this one: what a new stage is made from
        self._blank = (copy.deepcopy(stage).to("meta"),)

    def forward(self, *given: Any, **named: Any) -> Tensor:
        found = [stage(*given, **named) for stage in self.stages]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def train(self, mode: bool = True) -> Self:
        """The statistics of those that rest stay as they are."""
        super().train(mode)
        for stage in self.stages[:-1]:
            stage.eval()
        return self

    def add(self) -> None:
        """One more, like the newest, which rests from now on."""
        newest = self.stages[-1]
        stage = copy.deepcopy(self._blank[0])
        stage.load_state_dict({name: value.clone() for name, value in newest.state_dict().items()}, assign=True)
        stage.requires_grad_(True)
        newest.requires_grad_(False)
        newest.eval()
        self.stages.append(stage.train(self.training))


class Expandable(nn.Module):
    """A model that gets one more last stage, and a wider head, whenever a task ends."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        """
        model: its last stage is replaced by one that can be repeated.
        example: inputs like those of training, without data.
        """
        super().__init__()
        given: tuple[Any, ...] = () if isinstance(example, Mapping) else (example,)
        named: dict[str, Any] = dict(example) if isinstance(example, Mapping) else {}
        chain = block_chain(model, given, named)
        self._stage, self._head = last_stage(model, chain), chain.head
        self.model = model
        parent, _, name = self._stage.rpartition(".")
        setattr(model.get_submodule(parent), name, SideBySide(model.get_submodule(self._stage)))
        self.width = self._refuse_unless_repeatable(given, named)

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.model(*given, **named)

    @property
    def stages(self) -> nn.ModuleList:
        """Old ones first."""
        found = self.model.get_submodule(self._stage)
        assert isinstance(found, SideBySide)
        return found.stages

    def end_task(self) -> None:
        found, head = self.model.get_submodule(self._stage), self.model.get_submodule(self._head)
        assert isinstance(found, SideBySide)
        assert isinstance(head, nn.Linear)
        found.add()
        widen(head, self.width)

    def _refuse_unless_repeatable(self, given: tuple[Any, ...], named: dict[str, Any]) -> int:
        """Channels that one stage gives the head; with two stages there must be twice as many."""
        found, head = self.model.get_submodule(self._stage), self.model.get_submodule(self._head)
        assert isinstance(found, SideBySide)
        if isinstance(head, nn.Linear):
            found.stages.append(found.stages[0])
            seen = self._seen_by_head(given, named)
            del found.stages[1]
            if seen == (2, 2 * head.in_features):
                return head.in_features
        raise BudgetedError(
            f"the last stage of {type(self.model).__name__}, {self._stage!r}, cannot be repeated: its channels do not "
            "reach a linear head one by one; choose a network of convolutions such as resnet32, resnet18 or cnn8"
        )

    def _seen_by_head(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, ...]:
        """The shape of what the head is given; nothing is computed."""
        tensors = (*self.model.named_parameters(), *self.model.named_buffers())
        weights = {name: tensor.detach().to("meta") for name, tensor in tensors}
        shapes: list[tuple[int, ...]] = []

        def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            shapes.append(tuple(arguments[0].shape))

        head = self.model.get_submodule(self._head)
        try:
            with head.register_forward_pre_hook(note), torch.no_grad(), evaluating(self.model):
                given, named = pytree.tree_map_only(Tensor, lambda each: each.to("meta"), (given, named))
                functional_call(self.model, weights, given, named, tie_weights=False)
        except Exception:  # at the latest in the head, which is too narrow for two
            return shapes[0] if shapes else ()
        return ()


def last_stage(model: nn.Module, chain: BlockChain) -> str:
    """The path of the last stage: the module of the model that holds the last block before the head or, where that is
    a row of rows of layers, the last of these."""
    below_head = [block.name for block in chain.blocks if not f"{block.name}.".startswith(f"{chain.head}.")]
    if not below_head:
        raise BudgetedError(f"{type(model).__name__} has no stage below its head: choose a network such as cnn8")
    parts = below_head[-1].split(".")
    held = model.get_submodule(parts[0])
    weighted = [part for part in held.children() if any(True for _ in part.parameters())]
    rows = isinstance(held, nn.Sequential) and all(isinstance(part, nn.Sequential) for part in weighted)
    return ".".join(parts[:2]) if rows and len(weighted) > 1 else parts[0]


@torch.no_grad()
def widen(head: nn.Linear, features: int) -> None:
    """So many inputs more, behind those that are there, drawn by a linear layer's own law."""
    rows, inputs = head.weight.shape
    bound = 1 / math.sqrt(inputs + features)
    weight = torch.empty(rows, inputs + features).uniform_(-bound, bound).to(head.weight)
    weight[:, :inputs] = head.weight
    head.weight, head.in_features = nn.Parameter(weight), inputs + features
