"""Labels that come later than their samples: the learner answers at once, and learns when the label is there.

    late = LateLabels(learner, "200kB")
    for key, picture in camera:
        print(late.ask(key, picture))
        for old_key, word in labels_that_came():
            late.tell(old_key, word)

What waits is bounded, and its bytes are the learner's: they are reserved in its budget from the first. When there is no
room, what has waited longest is let go, and counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor

from budgeted.budget import parse_bytes
from budgeted.errors import BudgetedError
from budgeted.learner.bytes import give_up_slots
from budgeted.learner.learner import Learner
from budgeted.problems import Sample
from budgeted.replay import bytes_per_slot

WAITING = "waiting for labels"


class LateLabels:
    """Samples that wait for their labels, by a key of the user's."""

    def __init__(self, learner: Learner, limit: int | str) -> None:
        """limit: bytes that waiting samples may take; they come off the learner's memory."""
        limit = parse_bytes(limit) if isinstance(limit, str) else limit
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise BudgetedError(f"give the bytes that may wait as a whole number or as in '2MB', got {limit!r}")
        each = bytes_per_slot(learner.problem.columns())
        if limit < each:
            raise BudgetedError(f"a sample takes {each} bytes, {limit} hold none: give more")
        if WAITING in learner.reserved:
            raise BudgetedError("somebody waits for labels with this learner already: use that one")
        self.learner, self.most = learner, limit // each
        self.dropped = 0
        """samples that were let go before their label came"""
        self._waiting: dict[Hashable, Sample] = {}
        with learner.working():
            learner.reserved[WAITING] = self.most * each
            try:
                give_up_slots(learner)
            except BaseException:
                del learner.reserved[WAITING]
                raise

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, key: Hashable, sample: Any) -> Any:
        """What the learner says to a sample, None before it has learned anything; the sample waits for its label."""
        with self.learner.lock:
            checked = self.learner.problem.check(sample)
            if key in self._waiting:
                raise BudgetedError(f"a sample waits under the key {key!r} already: give every sample its own")
            if len(self._waiting) == self.most:
                del self._waiting[next(iter(self._waiting))]
                self.dropped += 1
            self._waiting[key] = _copied(checked)
            return self.learner.predict([checked])[0] if self.learner.class_labels else None

    def tell(self, key: Hashable, label: Any) -> bool:
        """The label of a sample has come: the learner takes both. False if the sample waits no more."""
        with self.learner.lock:
            sample = self._waiting.get(key)
            if sample is None:
                return False
            self.learner.learn(sample, label)  # a label that is refused leaves the sample waiting
            del self._waiting[key]
            return True


def _copied(sample: Sample) -> Sample:
    """What the user does to a picture later is not learned."""
    if isinstance(sample, Tensor):
        return sample.clone()
    assert isinstance(sample, Mapping)
    return {name: tensor.clone() for name, tensor in sample.items()}
