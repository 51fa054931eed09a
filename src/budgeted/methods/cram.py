"""CRAM, of our own: compressed replay, averaged model.

What both budgets buy most with, found by measuring (docs/methods/cram.md): the memory holds pictures as JPEG scans, so
that its bytes keep ten times as many; every class is replayed as often as every other; Muon takes the steps, its
iterations charged; predictions are made with a moving average of the weights over the last thirtieth of the steps, its
bytes counted, from a picture and its mirror image where that keeps the label. Nothing rests, and no similarity is
looked at: what they gain is less than what they take here.

Cost: forward and backward of the batch, Muon's iterations, the average, decoding; a prediction runs the model twice.
Bytes: model, half as much again for the average, slots of varying size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from budgeted.methods.method import METHODS, Method, Named
from budgeted.replay import Codec, Retrieval


@METHODS.register("cram")
@dataclass
class CRAM(Method):
    """compressed replay of balanced classes by Muon, predicting with averaged weights (ours)"""

    retrieval: Named[Retrieval] = "class-balanced"
    codec: Named[Codec] = "fitted"

    usual: ClassVar[Mapping[str, str]] = {
        "learner.optimizer": "muon",
        "learner.learning_rate": "2e-3",
        "learner.average": "bfloat16",
        "learner.average_decay": "0.998",
        "learner.average_warm_up": "31",
        "learner.mirrored": "true",
    }
