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

import torch
from torch import Tensor


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
