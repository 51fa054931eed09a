"""Logits of many samples in evaluation mode, aside from the training step, and what they cost.

What a method looks at between or behind steps (the loss of the memory, the votes of augmented views, validation
samples, an older model's answer) is one forward without gradients; it leaves batch norm's statistics, gradients and
generators as they were.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from budgeted.budget import Cost, Purpose
from budgeted.replay.evaluation_mode import evaluating
from budgeted.replay.view import LearnerView

_CHUNK = 128


def price_of(learner: LearnerView, count: int, *, backward: bool = False) -> Cost:
    """A forward of `count` samples in evaluation mode, and a whole backward if asked: linear in the samples, so one
    batch shape is traced for all."""
    like = torch.empty(_CHUNK, *learner.data.input_shape, device="meta")
    with evaluating(learner.model):
        cost = learner.pass_price(like, backward=backward)
    return Cost(cost.paper * count // _CHUNK, cost.real * count // _CHUNK)


@torch.no_grad()
def evaluated(learner: LearnerView, samples: Tensor, purpose: Purpose, *, augment: bool = False) -> Tensor:
    """Logits of stored samples (uint8), charged to `purpose`; `augment` varies each of them as training does."""
    with learner.aside(), evaluating(learner.model):
        found = [
            learner.model(learner.images_of(chunk, augment=augment)).float().cpu() for chunk in samples.split(_CHUNK)
        ]
    learner.charge(purpose, price_of(learner, len(samples)))
    return torch.cat(found)


@torch.no_grad()
def answers_of(learner: LearnerView, weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Logits that the model would give with other parameters and buffers, charged as `forward`.

    The head may have fewer rows than today's: the rows that are missing are not computed, and not charged.
    """
    with learner.aside(), evaluating(learner.model):
        logits: Tensor = functional_call(learner.model, dict(weights), (images,))
    missing = learner.head.out_features - logits.shape[1]
    macs, biases = len(images) * missing * learner.head.in_features, len(images) * missing
    biases *= learner.head.bias is not None
    learner.charge("forward", price_of(learner, len(images)) - Cost(macs + biases, 2 * macs + biases))
    return logits
