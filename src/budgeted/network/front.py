"""A model in two: a front whose outputs may be stored, and the rest, which can be run from them.

    model = FrontAndRest(model, problem.example(2), trained=2, codebooks=32)
    features = model.front(images)
    model.go_over()                   # from here on the front rests, and features may be given instead of images

The cut is before one of the model's blocks, where a single value passes; it is found in the graph that torch.fx writes
down of the model. Images that are given after that are run through the front, quantised and restored, so that the rest
always reads what it is trained on.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain, block_chain
from budgeted.network.evaluation_mode import evaluating
from budgeted.network.quantiser import ProductQuantiser


class FrontAndRest(nn.Module):
    """The model as it was, and from `go_over` on its rest alone."""

    def __init__(self, model: nn.Module, example: Any, trained: int, codebooks: int) -> None:
        """
        example: images like those of training, without data.
        trained: blocks below the head that go with it to the rest; at least one block stays in front.
        codebooks: of the quantiser, at most.
        """
        super().__init__()
        if not isinstance(example, Tensor):
            raise _no_cut(model, "it is called with several inputs")
        chain = block_chain(model, (example,))
        first = max(1, len(chain) - 1 - trained)
        self.model = model
        self._front, self._rest = cut(model, chain, first)
        self._apart = (_Part(model, self._front),)  # no module of this one: its layers are the model's
        self._leaves = tuple(str(node.target) for node in self._front.nodes if node.op == "call_module")
        self.shape = self._shape(example)
        self.quantiser = ProductQuantiser(self.shape[0], codebooks)
        self.over = False

    @property
    def front(self) -> nn.Module:
        """The front by itself, with the model's own layers."""
        return self._apart[0]

    def forward(self, inputs: Tensor) -> Any:
        if not self.over:
            return self.model(inputs)
        if tuple(inputs.shape[1:]) != self.shape:
            inputs = self.quantiser.restored(self.quantiser.codes(run(self.model, self._front, inputs)))
        return run(self.model, self._rest, inputs)

    def example(self, batch: int) -> Tensor:
        """Features of so many samples, without data."""
        return torch.empty(batch, *self.shape, device="meta")

    def go_over(self) -> None:
        """The front rests, with its statistics."""
        self.over = True
        for path in self._leaves:
            self.model.get_submodule(path).requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for path in self._leaves if self.over else ():
            self.model.get_submodule(path).eval()
        return self

    def _shape(self, example: Tensor) -> tuple[int, ...]:
        """Of one sample's features."""
        with torch.no_grad(), evaluating(self.model), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            features = run(self.model, self._front, mode.from_tensor(torch.zeros_like(example, device="cpu")))
        if not isinstance(features, Tensor) or features.ndim not in (2, 4):
            raise _no_cut(self.model, "its front gives neither maps nor vectors")
        return tuple(features.shape[1:])


class _Part(nn.Module):
    """A part of a model's graph."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__()
        self.model = model
        self._graph = graph

    def forward(self, inputs: Tensor) -> Any:
        return run(self.model, self._graph, inputs)


def run(model: nn.Module, graph: fx.Graph, given: Any) -> Any:
    """What the graph gives, with the layers that the model has now."""
    found: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        arguments = fx.map_arg(node.args, found.__getitem__)
        named = fx.map_arg(node.kwargs, found.__getitem__)
        if node.op == "placeholder":
            found[node] = given
        elif node.op == "get_attr":
            found[node] = operator.attrgetter(node.target)(model)
        elif node.op == "call_module":
            found[node] = model.get_submodule(node.target)(*arguments, **named)
        elif node.op == "call_method":
            found[node] = getattr(arguments[0], node.target)(*arguments[1:], **named)
        elif node.op == "call_function":
            found[node] = node.target(*arguments, **named)
        else:
            return arguments[0]
    return None


class _Blocks(fx.Tracer):
    """A block is one node, whatever is in it."""

    def __init__(self, blocks: Collection[str]) -> None:
        super().__init__()
        self._blocks = blocks

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return path in self._blocks or super().is_leaf_module(module, path)


def cut(model: nn.Module, chain: BlockChain, first: int) -> tuple[fx.Graph, fx.Graph]:
    """What is run before the block `first` of the chain, and what from there on."""
    try:
        graph = _Blocks(chain.names).trace(model)
    except Exception as error:
        raise _no_cut(model, f"torch.fx cannot follow it ({str(error).splitlines()[0]})") from error
    behind = {name for block in chain.blocks[first:] for name in block.parameters}
    nodes = list(graph.nodes)
    begins = next(
        (place for place, node in enumerate(nodes) if node.op == "call_module" and _holds(str(node.target), behind)), 0
    )
    passing = [node for node in nodes[:begins] if any(user in nodes[begins:] for user in node.users)]
    if len(passing) != 1:
        raise _no_cut(model, f"{len(passing)} values pass into {chain.blocks[first].name!r}")
    front, rest = fx.Graph(), fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in nodes[:begins]:
        copied[node] = front.node_copy(node, copied.__getitem__)
    front.output(copied[passing[0]])
    copied = {passing[0]: rest.placeholder("features")}
    for node in nodes[begins:]:
        copied[node] = rest.node_copy(node, copied.__getitem__)
    return front, rest


def _holds(path: str, parameters: Collection[str]) -> bool:
    return any(name.startswith(f"{path}.") for name in parameters)


def _no_cut(model: nn.Module, reason: str) -> BudgetedError:
    return BudgetedError(
        f"{type(model).__name__} cannot be cut into a front and a rest: {reason}; choose a network such as resnet32, "
        "resnet18 or cnn8"
    )
