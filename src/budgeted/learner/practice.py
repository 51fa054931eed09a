"""A training step outside the stream, for methods that train for an evaluation: on the footing of every other step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from budgeted.budget import Cost, Purpose
from budgeted.freezing import BadLoss

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner


def practise(learner: Learner, samples: Tensor, labels: Tensor, purpose: Purpose) -> float:
    """Augment, forward, plain loss, whole backward, update; charged to `purpose`, and no gradient stays behind."""
    images = learner.images_of(samples, augment=True)
    learner.model.train()
    with learner.aside():
        with learner._autocast():
            loss = learner._loss(learner.model(images), labels.to(learner.device))
        value = float(loss.item())
        if not math.isfinite(value):
            raise BadLoss(f"the loss is {value} while training for an evaluation: lower learner.learning_rate")
        if learner.scaler is None:
            loss.backward()
            learner._update()
        else:
            learner.scaler.scale(loss).backward()
            learner.scaler.step(learner.optimizer)
            learner.scaler.update()
    for parameter in learner._parameters():
        parameter.grad = None
    learner.charge(purpose, practice_price(learner, len(samples)))
    learner.steps += 1
    learner.ledger.steps += 1
    return value


def practice_price(learner: Learner, batch: int) -> Cost:
    """What `practise` costs on so many samples."""
    training = learner.model.training
    learner.model.train()
    cost = learner.pass_price(learner.example(batch), backward=True)
    learner.model.train(training)
    trained = [parameter for parameter in learner._parameters() if parameter.requires_grad]
    return cost + learner.freezing.optimizer_cost(trained)
