"""Masks over the weights of a network, for methods that keep or train a part of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from budgeted.network import Network

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def masked_weights(network: Network) -> dict[str, nn.Parameter]:
    """Weights that are masked, by name: of convolutions and linear layers but the first and the head. A model with none
    between the two has its first masked."""
    trained, head = network.trained_by_name(), network.freezing.chain.head
    layers = [path for path, module in network.model.named_modules() if isinstance(module, _LAYERS) and path != head]
    names = [f"{path}.weight" for path in layers if f"{path}.weight" in trained]
    return {name: trained[name] for name in names[1:] or names}


def strongest(scores: Tensor, count: int) -> Tensor:
    """Mask of the `count` entries with the highest scores."""
    mask = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    mask[scores.flatten().topk(count).indices] = True
    return mask.view(scores.shape)


def share_of(weight: Tensor, share: float) -> int:
    """How many entries of a weight a share of it is; one at least."""
    return min(weight.numel(), max(1, round(share * weight.numel())))
