"""Accuracy over the stream, at its end, and what was forgotten: numbers from evaluation records alone.

All accuracies are fractions in [0, 1]; tables turn them into percent. Nothing here touches a file or a model,
so a table can be re-aggregated from the records of any finished or half-finished run.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from budgeted.errors import BudgetedError


class UndefinedMetric(BudgetedError):
    """The records do not determine the metric; the line says which record is missing or wrong."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: how many test images of each class were right after `samples` stream samples.

    Classes are numbered in order of first appearance. A class not evaluated has a total of 0, and trailing
    classes may be left out, so records written before a class appeared stay valid as they are.
    """

    samples: int
    correct: tuple[float, ...]
    total: tuple[int, ...]
    seconds: float | None = None

    def __post_init__(self) -> None:
        # Records arrive as JSON lists or integer arrays; a fraction that is right comes from a score between 0 and 1.
        try:
            object.__setattr__(self, "samples", operator.index(self.samples))
            object.__setattr__(self, "total", tuple(operator.index(count) for count in self.total))
            object.__setattr__(self, "correct", tuple(_counted(count) for count in self.correct))
        except (TypeError, ValueError) as error:
            raise UndefinedMetric("an evaluation holds counts, whole ones of all samples: no accuracies") from error
        if self.samples < 0:
            raise UndefinedMetric(f"an evaluation after {self.samples} samples: give a count of at least 0")
        if len(self.correct) != len(self.total):
            raise UndefinedMetric(
                f"the evaluation after {self.samples} samples has {len(self.correct)} correct counts but "
                f"{len(self.total)} totals: give one of each per class"
            )
        for label, (correct, total) in enumerate(zip(self.correct, self.total, strict=True)):
            if not 0 <= correct <= total:
                raise UndefinedMetric(
                    f"the evaluation after {self.samples} samples has {correct} of {total} images "
                    f"of class {label} correct: the record is damaged"
                )
        if sum(self.total) == 0:
            raise UndefinedMetric(
                f"the evaluation after {self.samples} samples has no test image: evaluate on at least one seen class"
            )
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise UndefinedMetric(
                f"the evaluation after {self.samples} samples took {self.seconds} seconds: the record is damaged"
            )

    @property
    def accuracy(self) -> float:
        """Share of all test images that were right (micro accuracy: large classes weigh more)."""
        return sum(self.correct) / sum(self.total)

    def class_accuracy(self, label: int) -> float | None:
        """Accuracy on one class, None where this evaluation has no image of it."""
        if label >= len(self.total) or self.total[label] == 0:
            return None
        return self.correct[label] / self.total[label]


def a_auc(evaluations: Sequence[Evaluation]) -> float:
    """The paper's A_AUC: the plain mean of the accuracies of all evaluations, as its published code has it.

    With evaluations at equal distances this is the area under the curve up to the half weights at both ends.
    It weighs every evaluation alike, so it is comparable between runs only if they evaluate at the same
    samples.
    """
    _ordered(evaluations)
    return math.fsum(evaluation.accuracy for evaluation in evaluations) / len(evaluations)


def a_last(evaluations: Sequence[Evaluation]) -> float:
    """Accuracy of the last evaluation."""
    _ordered(evaluations)
    return evaluations[-1].accuracy


def f_last(evaluations: Sequence[Evaluation], task_ends: Sequence[int]) -> float:
    """How far each class fell from its best earlier task end to the last evaluation, averaged over classes.

    `task_ends` are sample counts at which an evaluation must exist; those at or after the last evaluation do
    not count as earlier. Classes that were never right at an earlier task end (among them those of the last
    task) are left out. A class that still improved counts with a negative value.
    """
    _ordered(evaluations)
    final = evaluations[-1]
    at = {evaluation.samples: evaluation for evaluation in evaluations}
    earlier: list[Evaluation] = []
    for end in sorted(set(task_ends)):
        if end >= final.samples:
            continue
        if end not in at:
            raise UndefinedMetric(f"no evaluation at the task end after {end} samples: evaluate there")
        earlier.append(at[end])
    if not earlier:
        raise UndefinedMetric(
            f"no task ended before the last evaluation after {final.samples} samples: "
            "forgetting needs at least two tasks"
        )
    falls: list[float] = []
    for label in range(max(len(evaluation.total) for evaluation in earlier)):
        best = max((evaluation.class_accuracy(label) or 0.0) for evaluation in earlier)
        if best == 0:
            continue
        last = final.class_accuracy(label)
        if last is None:
            raise UndefinedMetric(
                f"class {label} was tested at an earlier task end but not after {final.samples} samples: "
                "evaluate on all seen classes"
            )
        falls.append(best - last)
    if not falls:
        raise UndefinedMetric("no class was ever right at an earlier task end: there is nothing to forget")
    return math.fsum(falls) / len(falls)


def domain_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """CLEAR's four means over R[i][j], the accuracy on the test part of domain j when domain i has just ended.

    in: j = i. next: the domain that follows. backward: all earlier ones. forward: all later ones. None where there is
    no such pair. A record gives `domain` (i) and, for every j, `correct` and `total`.
    """
    found: dict[str, list[float]] = {"in": [], "next": [], "backward": [], "forward": []}
    for record in records:
        now = record["domain"]
        for j, (correct, total) in enumerate(zip(record["correct"], record["total"], strict=True)):
            if now is None or total == 0:
                continue
            found["in" if j == now else "backward" if j < now else "forward"].append(correct / total)
            if j == now + 1:
                found["next"].append(correct / total)
    return {kind: math.fsum(values) / len(values) if values else None for kind, values in found.items()}


def _ordered(evaluations: Sequence[Evaluation]) -> None:
    if not evaluations:
        raise UndefinedMetric("the run has no evaluation: let it reach its first evaluation")
    for previous, current in itertools.pairwise(evaluations):
        if current.samples <= previous.samples:
            raise UndefinedMetric(
                f"an evaluation after {current.samples} samples follows one after {previous.samples}: "
                "give them in stream order, each once"
            )


def _counted(count: float) -> float:
    """A whole number, or a sum of scores."""
    try:
        return operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        if not isinstance(count, float) or not math.isfinite(count):
            raise
        return count
