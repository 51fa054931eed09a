"""Networks at work: model, optimizer, freezing and sampled gradients together; what is run on one is charged."""

from __future__ import annotations

from budgeted.network.average import Average
from budgeted.network.calls import Inputs, called
from budgeted.network.network import Autocast, Network
from budgeted.network.sampled_gradients import SampledGradients, SampledStep

__all__ = ["Autocast", "Average", "Inputs", "Network", "SampledGradients", "SampledStep", "called"]
