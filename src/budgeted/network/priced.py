"""What a run of a model costs, before it is run: a training step, a pass aside from it, an update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from budgeted.budget import NOTHING, Cost, Pricer, Purpose, total, trace
from budgeted.budget.account import Account
from budgeted.budget.kept import Keeps
from budgeted.freezing import FrozenStep, LayerFreezing
from budgeted.network.average import Averaged
from budgeted.network.calls import Inputs, as_given, count_of, training
from budgeted.network.evaluation_mode import evaluating

PRICED = 128  # samples of the batch whose price is traced; a pass in evaluation mode costs in proportion


class Priced(Keeps):
    """A model with its optimizer and its freezing, which knows the prices."""

    model: nn.Module
    account: Account
    freezing: LayerFreezing
    optimizer: Optimizer
    example: Callable[[int], Inputs]
    average: Averaged | None
    _known: dict[tuple[object, ...], Cost]

    @property
    def head(self) -> nn.Module:
        """The last block's layer."""
        return self.model.get_submodule(self.freezing.chain.head)

    @property
    def linear_head(self) -> nn.Linear:
        head = self.head
        assert isinstance(head, nn.Linear)
        return head

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of the optimizer."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def trained_by_name(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def price(self, inputs: Inputs, *, backward: bool = False) -> Cost:
        """A forward in training mode, and a whole backward if asked."""
        with training(self.model):
            return self._price(inputs, backward)

    def price_of(self, count: int, *, backward: bool = False, like: Inputs | None = None) -> Cost:
        """A forward of so many samples in evaluation mode, and a whole backward if asked: linear in the samples, so one
        shape is traced for all. `like`: inputs of their size, which may be smaller in training."""
        with evaluating(self.model):
            cost = self._price(self._example(PRICED, like), backward)
        return Cost(cost.paper * count // PRICED, cost.real * count // PRICED)

    def price_of_part(self, part: nn.Module, inputs: Tensor) -> Cost:
        """A forward of a part of the model in evaluation mode."""
        key = ("part", id(part), *inputs.shape[1:])
        if key not in self._known:
            with evaluating(self.model):
                example = torch.empty(PRICED, *inputs.shape[1:], device="meta")
                self._known[key] = total(Pricer(trace(part, (example,))).forward())
        cost = self._known[key]
        return Cost(cost.paper * len(inputs) // PRICED, cost.real * len(inputs) // PRICED)

    def practice_price(self, batch: int) -> Cost:
        """What `practise` costs on so many samples."""
        return self.price(self.example(batch), backward=True) + self._update_cost(self.trained())

    def most(self, batch: int) -> Cost:
        """What a training step on so many samples costs at most, whatever rests."""
        return self.freezing.most(**as_given(self.example(batch))) + self._average_cost

    def nominal(self, batch: int, like: Inputs | None = None) -> dict[Purpose, Cost]:
        """What a training step on so many samples costs with nothing frozen, beside a loss of the method's own."""
        prices = self.freezing.price(**as_given(self._example(batch, like)))
        everything = [p for p in self.model.parameters() if p.requires_grad]
        return {
            "forward": total(prices.forward),
            "backward": total(prices.backward),
            "optimizer": self._update_cost(everything),
        }

    def saved(self, done: FrozenStep, inputs: Inputs) -> Cost:
        """What a training step on these did not cost because blocks rested."""
        whole = self.nominal(count_of(inputs), like=inputs)
        return total(whole.values()) - total(done.costs[purpose] for purpose in whole)

    def _example(self, count: int, like: Inputs | None) -> Inputs:
        """So many without data: of the usual size, or of that of a tensor."""
        usual = self.example(count)
        if not isinstance(like, Tensor) or not isinstance(usual, Tensor) or like.shape[1:] == usual.shape[1:]:
            return usual
        layout = torch.contiguous_format if usual.is_contiguous() else torch.channels_last
        return usual.new_empty(count, *like.shape[1:]).contiguous(memory_format=layout)

    @property
    def _average_cost(self) -> Cost:
        return NOTHING if self.average is None else self.average.price()

    def _update_cost(self, trained: Sequence[nn.Parameter]) -> Cost:
        return self.freezing.optimizer_cost(trained) + self._average_cost

    def _with_average(self, done: FrozenStep) -> FrozenStep:
        """The average follows in every step, whatever rests."""
        if self.average is None:
            return done
        costs = {**done.costs, "optimizer": done.costs.get("optimizer", NOTHING) + self._average_cost}
        return dataclasses.replace(done, costs=costs)

    def _price(self, inputs: Inputs, backward: bool) -> Cost:
        prices = self.freezing.price(**as_given(inputs))
        return prices.total if backward else total(prices.forward)
