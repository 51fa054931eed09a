"""What a policy may see of the blocks' own tensors: what they read and made, and what older weights would make.

Hooks note the tensors of the training forward, for each thread by itself; they are let go after the backward. Whatever
is run or computed for the sake of looking is charged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from budgeted.budget import Cost
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.hooks import only_for

Layer = nn.Conv2d | nn.Linear


class _Noted(threading.local):
    """What the hooks noted, for each thread by itself."""

    def __init__(self) -> None:
        self.referring = False
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.made: dict[int, Tensor] = {}  # by block
        self.read: dict[str, Tensor] = {}  # by layer


class Looking:
    """Watches the modules of a block chain."""

    def __init__(self, model: nn.Module, chain: BlockChain, listening: Callable[[], bool]) -> None:
        self._model = model
        self._chain = chain
        self._listening = listening
        self._noted = _Noted()
        self._handles: list[RemovableHandle] = []
        self._looked: list[Cost] = []
        self._forward = Cost()
        self.layers = layers_of(model, chain)
        self._before(model, self._note_arguments)
        modules = [self._module(block.name) for block in chain.blocks]
        for block, following in enumerate(modules[1:]):  # what a block made is what the next one reads
            self._before(following, self._noting_block(block))
        self._handles.append(modules[-1].register_forward_hook(only_for(modules[-1], self._note_last)))
        for name in [name for layers in self.layers for name in layers]:
            self._before(model.get_submodule(name), self._noting_layer(name))

    # -- the policy's side -------------------------------------------------------------------------------------

    def made(self, block: int) -> Tensor:
        """What a block made in this step's forward, as the next one reads it; of the head, its output."""
        if block not in self._noted.made:
            raise BudgetedError(
                f"block {self._chain.blocks[block].name!r} passes no tensor on that could be watched: "
                "choose another freezing policy"
            )
        return self._noted.made[block].detach()

    def made_with(self, parameters: Mapping[str, Tensor], block: int) -> Tensor:
        """What the block would make of this step's batch with other parameters: a whole forward, charged.

        It runs in the mode the model is in, on copies of its buffers, and leaves the random generators as they were.
        Until it is over the model has those parameters, for other threads too.
        """
        noted, self._noted.made = self._noted.made, {}
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        self._noted.referring = True
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                functional_call(self._model, {**buffers, **parameters}, *self._noted.arguments)
            return self._noted.made[block]
        finally:
            self._noted.referring = False
            self._noted.made = noted
            self._looked.append(self._forward)

    def read(self, layer: str) -> Tensor | None:
        """What a layer read in this step's forward; None if it was not called."""
        found = self._noted.read.get(layer)
        return None if found is None else found.detach()

    def layer(self, name: str) -> Layer:
        found = self._model.get_submodule(name)
        assert isinstance(found, Layer)
        return found

    def parameters(self) -> dict[str, Tensor]:
        """The parameters as they are: copy what is to be kept."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def charge(self, operations: int) -> None:
        """Operations (rule `real`) that the policy itself ran on what it saw."""
        self._looked.append(Cost(0, operations))

    # -- the freezing's side -----------------------------------------------------------------------------------

    def begin(self, looked: list[Cost], forward: Cost) -> Looking:
        """A decision begins: what looking costs goes to `looked`, and a forward has this price."""
        self._looked, self._forward = looked, forward
        return self

    def clear(self) -> None:
        """Let go of the graph and of the batch."""
        self._noted.made.clear()
        self._noted.read.clear()
        self._noted.arguments = ((), {})

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    # -- hooks -------------------------------------------------------------------------------------------------

    def _before(self, module: nn.Module, note: Callable[..., None]) -> None:
        self._handles.append(module.register_forward_pre_hook(only_for(module, note), with_kwargs=True))

    @property
    def _training(self) -> bool:
        return self._listening() and torch.is_grad_enabled() and not tracing() and not self._noted.referring

    def _note_arguments(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._training:
            self._noted.arguments = (args, kwargs)

    def _noting_block(self, block: int) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._noted.referring or self._training:
                found = _tensor_in((*args, *kwargs.values()))
                if found is not None:
                    self._noted.made[block] = found

        return note

    def _note_last(self, module: nn.Module, args: Any, output: Any) -> None:
        if (self._noted.referring or self._training) and isinstance(output, Tensor):
            self._noted.made[len(self._chain) - 1] = output

    def _noting_layer(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._training and args:
                self._noted.read[name] = args[0]

        return note

    def _module(self, name: str) -> nn.Module:
        try:
            return self._model.get_submodule(name)
        except AttributeError:
            raise BudgetedError(
                f"block {name!r} is no module, so what it reads and makes cannot be watched: "
                "choose another freezing policy, or make it a module"
            ) from None


def _tensor_in(items: Iterable[Any]) -> Tensor | None:
    """The first tensor; of a list of them (dense connections) the last, which is the newest."""
    for item in items:
        if isinstance(item, list | tuple) and item:
            item = item[-1]
        if isinstance(item, Tensor):
            return item
    return None


def layers_of(model: nn.Module, chain: BlockChain) -> tuple[tuple[str, ...], ...]:
    """The linear and the ungrouped convolution layers of every block but the head, by module path."""
    found: list[tuple[str, ...]] = []
    for block in range(len(chain) - 1):
        owned = set(chain.owned(block))
        found.append(
            tuple(
                name
                for name, module in model.named_modules()
                if isinstance(module, Layer) and getattr(module, "groups", 1) == 1 and f"{name}.weight" in owned
            )
        )
    return tuple(found)
