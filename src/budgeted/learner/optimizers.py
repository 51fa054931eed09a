"""The optimizer of a learner, and which of a model's weights Muon takes."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from budgeted.budget import prices
from budgeted.budget.optimizer import OptimizerPrice
from budgeted.budget.trace import trace
from budgeted.learner.settings import LearnerSettings
from budgeted.network.calls import Inputs, as_given
from budgeted.network.muon import Muon
from budgeted.network.schedule_free import ScheduleFree


def make_optimizer(settings: LearnerSettings, model: nn.Module, example: Inputs) -> Optimizer:
    parameters, rate, decay = model.parameters(), settings.learning_rate, settings.weight_decay
    if settings.optimizer == "muon":
        matrices, rest = matrices_and_rest(model)
        muon = Muon(
            [{"params": rest, "orthogonal": False}, {"params": matrices}],
            rate,
            momentum=settings.muon_momentum,
            iterations=settings.muon_iterations,
            weight_decay=decay,
        )
        _leave_dear_layers(muon, model, example, settings.batch_size, settings.muon_share)
        return muon
    if settings.optimizer == "schedule-free":
        return ScheduleFree(parameters, rate, weight_decay=decay, power=settings.free_power)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=settings.momentum, weight_decay=decay, fused=True)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, rate, weight_decay=decay, fused=True)


def matrices_and_rest(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Weights of convolutions and linear layers, and all others: among them those of the last linear layer, whose rows
    are classes."""
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, _ConvNd))]
    head = next((module for module in reversed(layers) if isinstance(module, nn.Linear)), None)
    wanted = {id(module.weight) for module in layers if module is not head}
    parameters = list(model.parameters())
    return [p for p in parameters if id(p) in wanted], [p for p in parameters if id(p) not in wanted]


def _leave_dear_layers(muon: Muon, model: nn.Module, example: Inputs, batch: int, share: float) -> None:
    """Leave to Adam the layers whose iterations would cost more than this share of their own forward and backward."""
    given = as_given(example)
    traced = trace(model, given["inputs"], given.get("keywords"))
    work: dict[int, float] = defaultdict(float)
    for op in traced.ops:
        price = prices.find(op.name)
        for value in op.inputs:
            if price is not None and value.parameter is not None:
                # the backward of a product is two of them
                work[id(traced.parameters[value.parameter])] += 3 * price(op).forward * batch / traced.batch
    price_of = OptimizerPrice(muon)
    rest, matrices = (group["params"] for group in muon.param_groups)
    dear = [p for p in matrices if price_of.step([p]).real > share * work[id(p)]]
    rest += dear
    matrices[:] = [p for p in matrices if all(p is not other for other in dear)]
