"""What a frozen set means for one step: who rests, who is trained, and the price; worked out once per batch shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from budgeted.budget import NOTHING, Cost, Purpose, total
from budgeted.budget.optimizer import OptimizerPrice
from budgeted.freezing.chain import BlockChain, NoBlockChain
from budgeted.freezing.step_prices import Forward, StepPrices


@dataclass(frozen=True, slots=True)
class Split:
    """A frozen set on one batch shape: who rests and who does not."""

    frozen: frozenset[int]
    modules: frozenset[str]
    resting: list[nn.Parameter]
    trained: list[nn.Parameter]
    costs: Mapping[Purpose, Cost]
    share: float


class Splits:
    """Works out and remembers how the steps of one model are split."""

    def __init__(self, prices: StepPrices, chain: BlockChain, optimizer: OptimizerPrice | None) -> None:
        self.prices = prices
        self.chain = chain
        self._optimizer = optimizer
        self._known: dict[tuple[Forward, frozenset[int]], Split] = {}
        self.look_again()

    def look_again(self) -> None:
        """Parameters were replaced: forget what was worked out."""
        self.parameters = dict(self.prices.model.named_parameters())
        self._known.clear()

    def of(self, forwards: Sequence[Forward], frozen: frozenset[int]) -> Split:
        """The split of a step with these forwards: one optimizer step for all of them, on the sum of the gradients."""
        splits = [self._of(forward, frozen) for forward in forwards]
        if len(splits) == 1:
            return splits[0]
        reading = sum(forward.read is None or bool(forward.read) for forward in forwards)
        summed = max(0, reading - 1) * sum(parameter.numel() for parameter in splits[-1].trained)
        costs: dict[Purpose, Cost] = {
            "forward": total(split.costs["forward"] for split in splits),
            "backward": total(split.costs["backward"] for split in splits) + Cost(0, summed),
            "optimizer": splits[-1].costs["optimizer"],
        }
        return replace(splits[-1], costs=costs)

    def optimizer_cost(self, trained: Sequence[nn.Parameter]) -> Cost:
        return self._optimizer.step(trained) if self._optimizer is not None and trained else NOTHING

    def _of(self, forward: Forward, frozen: frozenset[int]) -> Split:
        split = self._known.get((forward, frozen))
        if split is None:
            split = self._known[(forward, frozen)] = self._work_out(forward, frozen)
        return split

    def _work_out(self, forward: Forward, frozen: frozenset[int]) -> Split:
        if self.prices.chain(forward).blocks != self.chain.blocks:
            raise NoBlockChain(
                "this forward has other blocks than the example's (another mode, another branch): "
                "give LayerFreezing the model and an example as in training"
            )
        names = self.chain.frozen_parameters(frozen)
        idle = names | set(self.chain.unused)
        trained = [p for name, p in self.parameters.items() if p.requires_grad and name not in idle]
        prices, full = self.prices.of(forward, frozen), self.prices.of(forward)
        costs: dict[Purpose, Cost] = {
            "forward": total(prices.forward),
            "backward": total(prices.backward),
            "optimizer": self.optimizer_cost(trained),
        }
        whole = total(full.backward).real
        return Split(
            frozen,
            self.chain.modules_in(frozen),
            [self.parameters[name] for name in sorted(names)],
            trained,
            costs,
            1 - costs["backward"].real / whole if whole else 0.0,
        )
