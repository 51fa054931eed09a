"""Sampled per-sample gradients in evaluation mode: batch norm does not couple the samples of a batch.

What the training step gives for nothing is each sample's share of the batch's gradient. Under batch statistics that is
not the gradient of the sample's own loss. Here it is, at the price of one more forward and backward: to find out
whether the class similarity is better for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from budgeted.budget import Cost
from budgeted.methods.evaluated import price_of
from budgeted.replay.evaluation_mode import evaluating
from budgeted.replay.sampled_gradients import SampledStep

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner


def sampled_in_evaluation(learner: Learner, images: Tensor, labels: Tensor) -> SampledStep:
    """The step's images once more, with running statistics and nothing frozen; charged as similarity."""
    wanted = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
    with evaluating(learner.model), learner.freezing.paused(), learner.sampled:
        torch.autograd.grad(learner._loss(learner.model(images), labels), wanted, allow_unused=True)
        collected = learner.sampled.take()
    learner.charge("similarity", price_in_evaluation(learner, len(labels)))
    return collected


def price_in_evaluation(learner: Learner, batch: int) -> Cost:
    """What `sampled_in_evaluation` runs on so many samples, the reading of the sampled weights aside."""
    return price_of(learner, batch, backward=True)
