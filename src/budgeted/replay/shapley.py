"""Shapley values of samples for a nearest-neighbour classifier, in closed form (Jia et al., 2019).

The players are stored samples. What a group of them is worth for one sample to be classified is the share of its K
nearest members that have the right label (K counted even where the group is smaller). A player's Shapley value is what
it adds to that on average over all orders in which a group may gather. Sorted by distance, nearest first, the values of
N players follow from the last one:

    s(N) = right(N) min(K, N) / (K N)
    s(m) = s(m + 1) + (right(m) - right(m + 1)) min(K, m) / (K m)

Distances are squared Euclidean ones between features: what the model's head reads, in evaluation mode.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from budgeted.budget import Cost
from budgeted.replay.view import LearnerView

_PRICED = 64  # samples of the batch whose price is traced; a forward in evaluation mode costs in proportion


def shapley_values(
    players: Tensor, player_labels: Tensor, asked: Tensor, asked_labels: Tensor, neighbours: int
) -> Tensor:
    """[A, N] value of each of N players (features [N, d]) for each of A samples to be classified ([A, d])."""
    count = len(players)
    apart = asked.square().sum(1, keepdim=True) - 2 * asked @ players.T + players.square().sum(1)
    order = apart.argsort(dim=1, stable=True)
    right = (player_labels[order] == asked_labels[:, None]).to(players.dtype)
    rank = torch.arange(1, count + 1, dtype=players.dtype, device=players.device)
    weight = rank.clamp(max=neighbours) / (neighbours * rank)
    steps = right * weight
    steps[:, :-1] -= right[:, 1:] * weight[:-1]  # from one player to the next nearer one; the last stands alone
    values = steps.flip(1).cumsum(1).flip(1)
    return torch.empty_like(values).scatter_(1, order, values)


def shapley_operations(players: int, asked: int, features: int) -> int:
    """Operations of `shapley_values` under rule `real`: distances, sorting, and a few for every pair."""
    pairs, squares = players * asked, 2 * features * (players + asked)
    return 2 * pairs * features + squares + asked * features + pairs * (8 + math.ceil(math.log2(max(2, players))))


@torch.no_grad()
def features_of(learner: LearnerView, samples: Tensor) -> Tensor:
    """What the head reads of these samples (uint8), not augmented, in evaluation mode; not charged."""
    found: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0].detach().float())

    training = learner.model.training
    handle = learner.head.register_forward_pre_hook(keep)
    learner.model.eval()
    try:
        with learner.aside():
            learner.model(learner.images_of(samples))
    finally:
        handle.remove()
        learner.model.train(training)
    return found[0]


def features_price(learner: LearnerView, count: int) -> Cost:
    """A forward of `count` samples in evaluation mode, and the scaling of their pixels."""
    training = learner.model.training
    learner.model.eval()
    cost = learner.pass_price(torch.empty(_PRICED, *learner.data.input_shape, device="meta"))
    learner.model.train(training)
    pixels = math.prod(learner.data.input_shape)
    return Cost(cost.paper * count // _PRICED, cost.real * count // _PRICED + 2 * pixels * count)
