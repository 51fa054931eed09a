"""Several processes that train one model: gradients averaged by ourselves, and one decision for all of them.

DistributedDataParallel waits for the gradient of every parameter, so a backward that leaves blocks out breaks it. Here
the gradients of just the trained parameters are flattened and averaged after the backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from budgeted.errors import BudgetedError


class Ranks:
    """The processes of a group. Every one of them must make the same calls in the same order."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise BudgetedError("there is no process group: call torch.distributed.init_process_group() first")
        self._group = group
        self._size = dist.get_world_size(group)
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self._device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def start_alike(self, model: nn.Module) -> None:
        """Give every rank the parameters and buffers of the first."""
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), self._first, group=self._group)

    def any(self, flag: bool) -> bool:
        """Is it so on any rank?"""
        return self._sum([float(flag)])[0] > 0

    def mean(self, value: float, weight: int) -> float:
        """The mean over the ranks, each with its weight."""
        total, weights = self._sum([value * weight, float(weight)])
        return total / weights if weights else 0.0

    def agree(self, frozen: Collection[int], blocks: int) -> frozenset[int]:
        """The decision of the first rank."""
        mask = torch.tensor([block in frozen for block in range(blocks)], dtype=torch.uint8, device=self._device)
        dist.broadcast(mask, self._first, group=self._group)
        return frozenset(block for block, rests in enumerate(mask.tolist()) if rests)

    @torch.no_grad()
    def average(self, parameters: Sequence[nn.Parameter]) -> int:
        """Average the gradients; the operations that this rank does for it (rule `real`)."""
        alike: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            alike[(parameter.dtype, parameter.device)].append(parameter)
        operations = 0
        for (dtype, device), group in alike.items():
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in group]
            # a parameter without a gradient on every rank keeps none
            present = torch.tensor([p.grad is not None for p in group], dtype=dtype, device=device)
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients] + [present])
            dist.all_reduce(flat, group=self._group)
            operations += flat.numel()
            flat, reached = (flat[: -len(group)] / self._size).split([p.numel() for p in group]), flat[-len(group) :]
            for parameter, gradient, count in zip(group, flat, reached.tolist(), strict=True):
                if count:
                    _set_gradient(parameter, gradient.view(parameter.shape))
        return operations

    def _sum(self, values: list[float]) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(total, group=self._group)
        return [float(value) for value in total.tolist()]


def _set_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient.clone(memory_format=torch.preserve_format)
    else:
        parameter.grad.copy_(gradient)
