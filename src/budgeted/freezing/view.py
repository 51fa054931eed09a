"""What a policy may look at in one step; what looking costs is noted where it happens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from budgeted.budget import Cost, Rule, total
from budgeted.freezing.feature_gradient import FeatureGradient
from budgeted.freezing.given import Given
from budgeted.freezing.looking import Looking
from budgeted.freezing.policies import StepView
from budgeted.freezing.ranks import Ranks
from budgeted.freezing.split import Splits


@dataclass(frozen=True, slots=True)
class Views:
    """Makes them for the steps of one model."""

    splits: Splits
    features: FeatureGradient
    looking: Looking | None
    ranks: Ranks | None
    rule: Rule

    def of(self, given: Given, step: int, share: float | None) -> StepView:
        """What looking costs goes to `looked` (purpose `fisher`)."""
        prices, chain, forward = self.splits.prices, self.splits.chain, given.forwards[-1]
        of_loss, rule = given.loss_costs[0] + given.loss_costs[1], self.rule

        def feature_gradient() -> float:
            def cost() -> int:
                of_loss = self.features.price_of_loss(given.loss, given.loss_costs[1], given.others)
                return (prices.to_feature(forward) + of_loss).real

            size = self.features.size(given.loss, given.logits, given.targets, cost, given.scale)
            given.looked.append(Cost(0, size.operations))
            return size.mean if self.ranks is None else self.ranks.mean(size.mean, size.rows)

        def squared_gradients() -> list[float]:
            sums, elements = [0.0] * len(chain), 0
            scale = given.scale if given.more else 1.0  # the last one has unscaled them
            for block in range(len(chain)):
                for name in chain.owned(block):
                    gradient = self.splits.parameters[name].grad
                    if gradient is not None:
                        elements += gradient.numel()
                        # what is always trained loses nothing by freezing, like the head
                        at = len(chain) - 1 if name in chain.always else block
                        sums[at] += (float(torch.linalg.vector_norm(gradient)) / scale) ** 2
            given.looked.append(Cost(0, 2 * elements))
            return sums

        return StepView(
            step=step,
            blocks=len(chain),
            full_cost=lambda: (total(prices.of(each).total for each in given.forwards) + of_loss).under(rule),
            saved=lambda: tuple(map(sum, zip(*(prices.saved(each, rule) for each in given.forwards), strict=True))),
            feature_gradient=feature_gradient,
            squared_gradients=squared_gradients,
            most=prices.most(forward),
            share=share,
            names=chain.names,
            looking=self.looking and self.looking.begin(given.looked, total(prices.of(forward).forward)),
        )
