"""The user's model behind what it may be wrapped in, and the wrappers that freezing cannot work with."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from budgeted.budget.compiled import is_compiled
from budgeted.errors import BudgetedError


def unwrap(model: nn.Module) -> tuple[nn.Module, dist.ProcessGroup | None]:
    """The module that is trained, and the process group if it was in DistributedDataParallel.

    That wrapper's own reduction is switched off, as its `no_sync()` does: it waits for gradients that freezing leaves
    out.
    """
    if not isinstance(model, nn.Module):
        raise BudgetedError(f"a {type(model).__name__} is no torch module: give an nn.Module")
    if isinstance(model, DataParallel):
        raise BudgetedError(
            "DataParallel copies the model in every forward, so there is nothing to freeze: use one process per device"
        )
    if "FullyShardedDataParallel" in _bases(model) or "FSDPModule" in _bases(model):
        raise BudgetedError(
            "a sharded model (FSDP) gathers parameters in its own backward: freezing needs whole parameters, "
            "give the plain model on every rank and distributed=True"
        )
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = False
        refuse_whole_graph(model.module)
        return model.module, model.process_group
    refuse_whole_graph(model)
    return model, None


def inner_optimizer(optimizer: Optimizer | None) -> Optimizer | None:
    """The optimizer that steps: accelerate's `prepare()` puts it into another, whose own hooks and state are empty."""
    while any(kind.__name__ == "AcceleratedOptimizer" for kind in type(optimizer).__mro__):
        optimizer = optimizer.optimizer  # type: ignore[union-attr]
    return optimizer


def refuse_whole_graph(model: nn.Module) -> None:
    if is_compiled(model):
        raise BudgetedError(
            "the model is compiled as a whole, and a compiled backward runs as a whole: "
            "compile each block by itself, as in `for block in model.blocks: block.compile()`"
        )


def _bases(model: nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(model).__mro__}
