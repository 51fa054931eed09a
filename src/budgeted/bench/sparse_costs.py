"""What kernels that skip masked weights would execute: shown beside what is charged, never instead of it.

A convolution or a matrix product of dense tensors multiplies by zeros as by anything else, so a mask saves nothing that
can be charged less for. Kernels that leave zeros out would execute, of a masked layer's multiply-adds, the share of
active weights in the forward and in the gradient of the input, and the share of trained ones in that of the weights.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from budgeted import models, streams
from budgeted.learner import Learner
from budgeted.methods import METHODS
from budgeted.methods.masks import masked_weights, share_of
from budgeted.methods.sparcl import SparseContinualLearning
from budgeted.network import called
from budgeted.runs.plan import facts_of


def sparse_share(method: str, dataset: str, model: str) -> float | None:
    """Multiply-adds of a step's layers that sparse kernels would execute, over those of dense ones; None for a method
    without masks."""
    kind = METHODS[method]
    if not issubclass(kind, SparseContinualLearning):
        return None
    info = streams.info(dataset)
    network = models.build(model, classes=info.classes, input_shape=info.input_shape)
    learner = Learner(network, kind, facts_of(info), slots=1)
    found = share_of_learner(learner)
    learner.close()
    return found


def share_of_learner(learner: Learner) -> float:
    """The same of a learner whose method has masks."""
    method = learner.method
    assert isinstance(method, SparseContinualLearning)
    dense = sparse = 0.0
    masked = masked_weights(learner.network)
    for name, products in _products(learner).items():
        weight = masked.get(name)
        active = trained = 1.0
        if weight is not None:
            active = share_of(weight, method.density) / weight.numel()
            trained = min(active, share_of(weight, method.gradient_density) / weight.numel())
        dense += 3 * products
        sparse += (2 * active + trained) * products
    return sparse / dense


@torch.no_grad()
def _products(learner: Learner) -> dict[str, int]:
    """Multiply-adds of every layer's forward, by the name of its weight."""
    found: dict[str, int] = {}

    def note(name: str, module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        weight = module.get_parameter("weight")
        channels_last = isinstance(module, nn.Linear)
        found[name] = output.numel() * (weight.shape[1] if channels_last else weight[0].numel())

    with ExitStack() as hooks, learner.network.aside():
        for name, module in learner.model.named_modules():
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                hooks.enter_context(module.register_forward_hook(partial(note, f"{name}.weight")))
        like = learner.network.example(2)
        called(learner.model.eval(), pytree.tree_map(lambda each: torch.zeros(each.shape, dtype=each.dtype), like))
    return found
