"""Knowledge lost and gained between two moments of a stream (KLR and KGR); needs no task boundaries.

From two sets of predictions on the whole test set, y1 before and y2 after, a joint probability of (class g,
y1, y2) is modelled as the published code does. Of the images of class g let *lost* be the share right only
before, *gained* right only after, *kept* right both times, *neither* the rest. Wrong predictions are taken to
be independent of each other and distributed as the predictions on the whole test set with class g left out:
m1(y) = P(y1 = y) / (1 - P(y1 = g)), m2 likewise:

    P(g, y1, y2) = P(g) * neither * m1(y1) * m2(y2)      y1, y2 other than g
    P(g, g,  y2) = P(g) * lost * m2(y2)                  y2 other than g
    P(g, y1, g ) = P(g) * gained * m1(y1)                y1 other than g
    P(g, g,  g ) = P(g) * kept

A class that is not yet in the head is never predicted, so leaving it out changes nothing, m is the plain
marginal and its lost or gained share is 0: the published special case needs no branch here. The table sums to
1 for any predictions.

    loss     = I(g; y1 | y2) / log n_classes         KLR = loss / previous
    gain     = I(g; y2 | y1) / log n_classes         KGR = gain / (log n_seen / log n_classes - previous)
    previous = I(g; y1)      / log n_classes         n_seen = classes in the head after the interval

The published code fills a dense array of n_classes * n1 * n2 numbers (8 GB at 1,000 classes). Here every
mutual information is a sum of entropies and every entropy but H(y1, y2) has a closed form in the shares, so
time is O(C^2) and memory O(C).

The published code uses an epsilon of 1e-10 against zeros. Here limits are taken instead: 0 log 0 = 0, and
neither * (lost / neither) = lost also where neither = 0 (dividing by neither + 1e-10 would drop that share of
the class and leave the table short of 1). Up to about 100 classes an epsilon does not show. At 1,000 classes
the products inside the logarithms fall below 1e-10, and an epsilon added to them would bias the KLR strongly
(0.75 became 0.25 on synthetic predictions), so values published for so many classes may not be comparable.
What remains of the epsilon: a previous knowledge, or a knowledge still to be gained, of at most 1e-10 counts
as none, and the ratio to it is undefined (None) rather than a quotient of rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from budgeted.runs.metrics import UndefinedMetric

EPSILON = 1e-10
_ROWS_AT_ONCE = 256  # of the (y1, y2) table; bounds memory to a few of these rows

_Floats = npt.NDArray[np.float64]
_Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Knowledge:
    """One interval: loss, gain and previous in units of log n_classes; klr and kgr are ratios of them."""

    loss: float
    gain: float
    previous: float
    klr: float | None
    """None where nothing was known before."""
    kgr: float | None
    """None where nothing was left to be gained."""


def knowledge(
    truth: npt.ArrayLike,
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    classes_before: Collection[int],
    classes_after: Collection[int],
    n_classes: int,
) -> Knowledge:
    """Knowledge lost and gained between predictions `before` and `after` on test images of classes `truth`.

    `classes_before` and `classes_after` are the classes in the head at either time; a prediction outside is
    refused.
    """
    if n_classes < 2:
        raise UndefinedMetric(f"knowledge needs at least 2 classes, not {n_classes}")
    labels = _labels("truth", truth, range(n_classes))
    first = _labels("before", before, classes_before)
    second = _labels("after", after, classes_after)
    for name, classes in (("classes_before", classes_before), ("classes_after", classes_after)):
        if not all(0 <= label < n_classes for label in classes):
            raise UndefinedMetric(f"{name} holds a class outside 0 to {n_classes - 1}: raise n_classes")
    if not len(labels) == len(first) == len(second):
        raise UndefinedMetric(
            f"{len(labels)} labels, {len(first)} predictions before and {len(second)} after: "
            "predict every test image both times"
        )
    h = _entropies(labels, first, second, n_classes)
    unit = math.log(n_classes)
    loss, gain, previous = (
        # Never negative but for rounding.
        max(0.0, nats) / unit
        for nats in (
            h.class_second + h.first_second - h.all_three - h.second,
            h.class_first + h.first_second - h.all_three - h.first,
            h.label + h.first - h.class_first,
        )
    )
    missing = math.log(len(set(classes_after))) / unit - previous
    return Knowledge(
        loss=loss,
        gain=gain,
        previous=previous,
        klr=loss / previous if previous > EPSILON else None,
        kgr=gain / missing if missing > EPSILON else None,
    )


@dataclass(frozen=True)
class _Entropies:
    """Entropies in nats of the modelled joint of the class, the first and the second prediction."""

    label: float
    first: float
    second: float
    class_first: float
    class_second: float
    first_second: float
    all_three: float


def _entropies(labels: _Labels, first: _Labels, second: _Labels, n_classes: int) -> _Entropies:
    count = len(labels)

    def share(members: _Labels) -> _Floats:
        shares: _Floats = np.bincount(members, minlength=n_classes) / count
        return shares

    right_first, right_second = first == labels, second == labels
    # P(g) times the share of class g, so that the four of a class sum to P(g).
    kept = share(labels[right_first & right_second])
    lost = share(labels[right_first & ~right_second])
    gained = share(labels[~right_first & right_second])
    neither = share(labels[~right_first & ~right_second])
    p1, p2 = share(first), share(second)
    inverse1, wrong1 = _wrong_predictions(first, n_classes)
    inverse2, wrong2 = _wrong_predictions(second, n_classes)

    def marginal(right: _Floats, wrong: _Floats, p: _Floats, inverse: _Floats) -> float:
        # P(y) = right of class y, plus every other class's wrong mass spread by p(y) / (1 - p(class)).
        spread = wrong * inverse
        return _entropy(right + p * (spread.sum() - spread))

    def with_class(right: _Floats, wrong: _Floats, wrong_entropy: _Floats) -> float:
        return _entropy(right) + _entropy(wrong) + float(wrong @ wrong_entropy)

    spread_both = neither * inverse1 * inverse2
    first_second = 0.0
    predicted = np.flatnonzero(p1)  # other rows of the table are 0
    for start in range(0, len(predicted), _ROWS_AT_ONCE):
        rows = predicted[start : start + _ROWS_AT_ONCE]
        of_rows = p1[rows, None]
        others = spread_both.sum() - spread_both[rows, None] - spread_both
        table = of_rows * p2 * others + (lost * inverse2)[rows, None] * p2 + of_rows * (gained * inverse1)
        # On the diagonal one class is both y1 and y2: it is left out once, and its cell is what was kept.
        table[np.arange(len(rows)), rows] = p1[rows] * p2[rows] * (spread_both.sum() - spread_both[rows]) + kept[rows]
        first_second += _entropy(table)

    return _Entropies(
        label=_entropy(share(labels)),
        first=marginal(kept + lost, gained + neither, p1, inverse1),
        second=marginal(kept + gained, lost + neither, p2, inverse2),
        class_first=with_class(kept + lost, gained + neither, wrong1),
        class_second=with_class(kept + gained, lost + neither, wrong2),
        first_second=first_second,
        all_three=(
            _entropy(kept)
            + _entropy(lost)
            + float(lost @ wrong2)
            + _entropy(gained)
            + float(gained @ wrong1)
            + _entropy(neither)
            + float(neither @ (wrong1 + wrong2))
        ),
    )


def _wrong_predictions(predictions: _Labels, n_classes: int) -> tuple[_Floats, _Floats]:
    """Per class g: 1 / (1 - P(y = g)), and the entropy of the predictions with g left out.

    Where every image is predicted as g no image of g is wrong; both are then 0 and multiply a mass of 0.
    """
    counts = np.bincount(predictions, minlength=n_classes)
    p = counts / len(predictions)
    rest = (len(predictions) - counts) / len(predictions)
    inverse = np.divide(1.0, rest, out=np.zeros(n_classes), where=rest > 0)
    surprise = entr(p)
    log_rest = np.log(rest, out=np.zeros(n_classes), where=rest > 0)
    return inverse, (surprise.sum() - surprise) * inverse + log_rest


def _entropy(p: _Floats) -> float:
    # A difference of sums may leave -1e-17 where the true value is 0.
    return float(entr(np.maximum(p, 0.0)).sum())


def _labels(name: str, given: npt.ArrayLike, allowed: Collection[int]) -> _Labels:
    array = np.asarray(given)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise UndefinedMetric(f"{name} must be a non-empty list of class numbers, one per test image")
    used = {int(label) for label in np.unique(array)}
    if foreign := sorted(used.difference(allowed)):
        raise UndefinedMetric(f"{name} holds class {foreign[0]}, which is not one of its {len(allowed)} classes")
    return array.astype(np.int64)
