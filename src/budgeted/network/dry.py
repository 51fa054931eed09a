"""A network that is charged for everything as if it ran, and runs nothing: for a rehearsal of what a stream will cost.

Outputs and gradients are zeros of the right shapes. Features are noise around a place for every class, as of a network
that has learned something: what is chosen by them, and so what choosing costs the next time, depends on them. Prices
are those of the model as it was given: its head is not grown, or every new row would be traced anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from budgeted.budget import Cost, Purpose
from budgeted.budget.value_checks import taken_as_true
from budgeted.freezing import FrozenStep
from budgeted.network.calls import Inputs, as_given, called, count_of, key_of
from budgeted.network.evaluation_mode import evaluating
from budgeted.network.network import LOSS, Network
from budgeted.network.sampled_gradients import SampledStep

T = TypeVar("T")
CLASSES = 256
"""that features can tell apart; more share a place"""
_FAR = 100.0  # from class to class, in standard deviations of a feature: the nearest sample is one of the same class


class DryNetwork(Network):
    """The same verbs and the same charges; nothing of the model moves."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.rows = 0  # of the head, as far as it would have grown
        self.marks: Tensor | None = None  # classes of the latest inputs, if they are known
        self._noise = torch.Generator().manual_seed(0)
        self._places: Tensor | None = None  # of the classes, in the space of features
        self._results: dict[tuple[object, ...], Any] = {}
        self._ran: list[tuple[Any, Inputs]] = []  # outputs and inputs of the step's forwards
        self._read: dict[int, tuple[SampledStep, int]] = {}
        self._practice_prices: dict[int, Cost] = {}
        self._named: dict[str, list[str]] = {}  # by reader
        self._shapes: dict[str, list[tuple[int, ...]]] = {}  # of one sample behind the named blocks
        self._shaped: dict[tuple[object, ...], Any] = {}  # outputs without data, by the shapes of the inputs
        self._of_parts: dict[tuple[object, ...], tuple[int, ...]] = {}  # shapes of a sample behind parts of the model

    def forward(self, inputs: Inputs) -> Any:
        self.model.train()
        self.clear()
        self._inputs = inputs
        self._ran.clear()
        return self.forward_also(inputs)

    def forward_also(self, inputs: Inputs, *, moves: bool = False, parts: int = 1) -> Any:
        outputs = pytree.tree_map(_with_gradient, self._zeros(inputs))
        self._ran.append((outputs, inputs))
        return outputs

    def backward(self, loss: Tensor, logits: Tensor | None = None, rows: Tensor | None = None) -> FrozenStep:
        given = [(outputs, as_given(inputs)) for outputs, inputs in self._ran]
        costs = self.freezing.foretell(loss, [(o, each["inputs"], each.get("keywords", {})) for o, each in given])
        for parameter in self.trained():
            parameter.grad = parameter.detach()
        return self._with_average(FrozenStep(frozenset(), costs, 0.0, float(loss.detach())))

    def update(self) -> None:
        self.freezing.step += 1

    def note_features(self, names: Sequence[str], reader: str = LOSS) -> None:
        self._named.setdefault(reader, []).extend(names)

    def take_features(self, reader: str = LOSS) -> list[Tensor]:
        named = self._named.get(reader, [])
        if len(self._shapes.get(reader, [])) != len(named):
            self._shapes[reader] = self._shapes_behind(named)
        count = count_of(self._inputs)
        found = [_with_gradient(torch.zeros(count, *shape)) for shape in self._shapes.get(reader, [])]
        for place, feature in enumerate(found if reader == LOSS else []):
            self.freezing.mark_feature(place, feature)
        return found

    def last_feature(self) -> Tensor:
        feature: Tensor = _with_gradient(torch.zeros(count_of(self._inputs), self.linear_head.in_features))
        self.freezing.mark_feature(len(self.freezing.chain) - 2, feature)
        return feature

    def take_sampled(self) -> tuple[SampledStep, int]:
        """What reading them costs follows from the layers' shapes: a real pass shows it, once for each batch size."""
        count = count_of(self._inputs)
        if count not in self._read:
            real = pytree.tree_map(lambda each: torch.zeros(each.shape, dtype=each.dtype), self._inputs)
            outputs = called(self.model, real)
            torch.autograd.grad(outputs.float().sum(), self.trained(), allow_unused=True)
            step = self.sampled.take()
            self._read[count] = step, self.sampled.price(step.present)
        return self._read[count]

    def sampled_in_evaluation(self, inputs: Inputs, loss: Callable[[Any], Tensor]) -> tuple[SampledStep, int]:
        self.account.charge("similarity", self.price_of(count_of(inputs), backward=True, like=inputs))
        zeros = torch.zeros(count_of(inputs), len(self.sampled))
        return SampledStep(zeros, torch.ones(len(self.sampled), dtype=torch.bool)), 0

    def paid(self, purpose: Purpose, cost: Cost, run: Callable[[], T], rehearsed: Callable[[], T]) -> T:
        self.account.charge(purpose, cost)
        return rehearsed()

    def features(self, purpose: Purpose, inputs: Inputs) -> Tensor:
        count, size = count_of(inputs), self.linear_head.in_features
        self.account.charge(purpose, self.price_of(count, like=inputs))
        if self._places is None:
            self._places = _FAR * torch.randn(CLASSES, size, generator=self._noise)
        found = torch.randn(count, size, generator=self._noise)
        return found if self.marks is None or len(self.marks) != count else found + self._places[self.marks]

    def outputs_of_part(self, purpose: Purpose, part: nn.Module, inputs: Tensor) -> Tensor:
        self.account.charge(purpose, self.price_of_part(part, inputs))
        key = (part, tuple(inputs.shape[1:]))
        if key not in self._of_parts:  # a twentieth of a second, and REMIND asks for every sample
            fake = FakeTensorMode(allow_non_fake_inputs=True)
            with torch.no_grad(), evaluating(self.model), fake as mode, self.aside():
                self._of_parts[key] = tuple(part(mode.from_tensor(inputs[:2])).shape[1:])
        return torch.zeros(len(inputs), *self._of_parts[key])

    def changed(self) -> None:
        super().changed()
        self._of_parts.clear()

    def per_sample_gradients(
        self, purpose: Purpose, inputs: Tensor, rows: Tensor, together: int = 0
    ) -> Iterator[tuple[str, Tensor]]:
        self.account.charge(purpose, self.price_of(len(rows), backward=True, like=inputs))
        count = len(rows) - together + (together > 0)
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name, torch.zeros(()).expand(count, *parameter.shape)

    def practise(self, purpose: Purpose, inputs: Inputs, loss: Callable[[Any], Tensor]) -> float:
        self.account.end_step({purpose: self.practice_price(count_of(inputs))})
        return 0.0

    def run(self, purpose: Purpose, function: Callable[..., T], *given: Any) -> T:
        """What was met before gives what it gave then; but a tensor may decide something, so it is made anew."""
        key = key_of(purpose, function, given)
        if isinstance(self._results.get(key), Tensor):
            return super().run(purpose, function, *given)
        if key not in self._known:
            self._results[key] = super().run(purpose, function, *given)
        else:
            self.account.charge(purpose, self._known[key])
        found: T = self._results[key]
        return found

    def practice_price(self, batch: int) -> Cost:
        if batch not in self._practice_prices:
            self._practice_prices[batch] = super().practice_price(batch)
        return self._practice_prices[batch]

    def grow_head(self, rows: int, generator: np.random.Generator) -> None:
        self.rows = max(rows, self.rows)
        if self.grows:  # what a row costs follows from how far the rest has grown when it comes
            super().grow_head(rows, generator)

    def _set_row(self, row: int, *values: Tensor) -> None:
        """Its head has no such row."""

    def _zeros(self, inputs: Inputs) -> Any:
        """Outputs of the right shape."""
        if isinstance(self.head, nn.Linear) and self.rows:
            return torch.zeros(count_of(inputs), self.rows)
        key = tuple((tuple(each.shape), each.dtype) for each in pytree.tree_leaves(inputs))
        if key not in self._shaped:  # a large model takes a second for each
            self._shaped[key] = pytree.tree_map(_on_meta, self._fake(inputs))
        return pytree.tree_map(
            lambda each: torch.zeros(each.shape, dtype=each.dtype) if isinstance(each, Tensor) else each,
            self._shaped[key],
        )

    def _fake(self, inputs: Inputs) -> Any:
        """Outputs without data."""
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode, self.aside(), taken_as_true():
            fake = pytree.tree_map(lambda each: mode.from_tensor(torch.zeros_like(each, device="cpu")), inputs)
            return called(self.model, fake)

    def _shapes_behind(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []

        def note(module: nn.Module, given: Any, output: Any) -> None:
            found.append(tuple((output if isinstance(output, Tensor) else output[0]).shape[1:]))

        with contextlib.ExitStack() as hooks:
            for name in names:
                hooks.enter_context(self.model.get_submodule(name).register_forward_hook(note))
            self._fake(self.example(2))
        return found


def _on_meta(output: Any) -> Any:
    return torch.empty(output.shape, dtype=output.dtype, device="meta") if isinstance(output, Tensor) else output


def _with_gradient(output: Any) -> Any:
    """As if a model had put it out: with a place in a graph."""
    if isinstance(output, Tensor) and output.is_floating_point():
        return output.requires_grad_().view_as(output)
    return output
