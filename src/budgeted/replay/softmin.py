"""Exact draws without replacement with probabilities proportional to exp(-score / T), at any memory size.

The score of a slot of class y with stored frequency x is offset_y + slope_y · x, at least 0 if clamped.
Give every slot an exponential clock of rate exp(-score / T): the order in which the clocks ring is the
order of drawing one slot after another with these probabilities among those left (Plackett-Luce).

`draw_by_pass` rolls all the clocks: one vectorised pass over the memory, in logarithms.

`draw_by_proposals` touches only what it proposes. Slots are grouped in bands of known least score. The few
slots in the bands of lowest score get their clocks directly. For all the others, proposals arrive in time:
from a band at the rate of its size times exp(-least score / T), of a uniform member, accepted with
probability exp(-(score - least score) / T); the first accepted proposal of a slot is the ring of its clock.
Clocks have no memory, so whenever proposals become too many, those who rang are drawn and the rest is left
to `draw_by_pass`, exactly. Both ways are exact up to the 53 bits of the generator's numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from budgeted.replay.membership import Slots

Floats = npt.NDArray[np.float64]

_FADED = 1e-100
"""When the bands left weigh less than this, weights are taken afresh relative to the heaviest of them."""
_MOST_PROPOSALS = 4096
"""At a time."""

PASS_OPERATIONS = 8
"""Per slot of a pass: slope, offset, clamp, temperature, clock, logarithm, sum, comparison."""
BAND_OPERATIONS = 10
"""Per band: slope, offset, clamp, temperature, two selections, difference, exponential, size, row sum."""
PROPOSAL_OPERATIONS = 16
"""Per proposal beside the search: five random numbers scaled, score, bound, exponential, comparison."""


@dataclass(frozen=True)
class Scores:
    """The score of any slot from its class and its stored frequency."""

    offset: Floats
    slope: Floats
    clamp: bool
    temperature: float

    def energy(self, labels: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Floats:
        """Score / T."""
        score = self.slope[labels] * stored
        score += self.offset[labels]
        if self.clamp:
            np.maximum(score, 0.0, out=score)
        score /= self.temperature
        return np.asarray(score)


class Banded(Protocol):
    """Slots grouped by class and by band of stored frequency; key = class · number of bands + band."""

    @property
    def edges(self) -> Floats:
        """The least stored frequency of each band."""

    @property
    def counts(self) -> Slots:
        """Slots in each band of each class, [classes, bands]."""

    def pick(self, keys: Slots, positions: Slots) -> Slots:
        """The slot at each position of each key."""


def draw_by_pass(
    scores: Scores,
    labels: npt.NDArray[Any],
    stored: npt.NDArray[Any],
    drawn: dict[int, None],
    count: int,
    generator: np.random.Generator,
) -> int:
    """Complete `drawn` to `count` slots; returns the operations spent."""
    clocks = generator.standard_exponential(labels.size)
    np.log(clocks, out=clocks)
    clocks += scores.energy(labels, stored)
    if drawn:
        clocks[np.fromiter(drawn, np.int64, len(drawn))] = np.inf
    first = torch.from_numpy(clocks).topk(count - len(drawn), largest=False).indices
    drawn.update(dict.fromkeys(first.tolist()))
    return PASS_OPERATIONS * labels.size


def draw_by_proposals(
    scores: Scores,
    banded: Banded,
    stored: npt.NDArray[Any],
    drawn: dict[int, None],
    count: int,
    direct: int,
    patience: int,
    generator: np.random.Generator,
) -> int:
    """Draw into the empty `drawn` until it holds `count` slots or `patience` proposals are used up.

    At most `direct` slots get their clocks directly. Returns the operations spent.
    """
    counts = banded.counts
    bands = counts.shape[1]
    least = scores.slope[:, None] * banded.edges + scores.offset[:, None]
    if scores.clamp:
        np.maximum(least, 0.0, out=least)
    least /= scores.temperature
    sizes, energies = counts.ravel(), least.ravel()
    lowest = np.where(sizes > 0, energies, np.inf)  # infinite where a band is empty, closed or direct
    first = _lowest_bands(lowest, sizes, direct)
    slots, rings = _clocks(scores, banded, stored, first, sizes, generator)
    lowest[first] = np.inf
    operations = BAND_OPERATIONS * sizes.size + PASS_OPERATIONS * slots.size

    rang: dict[int, float] = {}  # slot -> logarithm of the time its clock rang, in order
    seen: dict[int, int] = {}
    unit, weights, rows = _weights(counts, lowest)
    now, size = 0.0, 4 * count  # time, in units of exp(unit)
    horizon = np.inf if unit == np.inf else -np.inf  # logarithm of the time up to which all is known
    while len(rang) + np.count_nonzero(rings <= horizon) < count and patience > 0:
        size = min(size, patience)
        patience -= size
        total = rows.cumsum()
        chance = generator.random((4, size))
        arrivals = now + generator.standard_exponential(size).cumsum() / total[-1]
        labels = np.minimum(total.searchsorted(chance[0] * total[-1], "right"), rows.size - 1)
        keys = labels
        if bands > 1:
            within = weights[labels].cumsum(axis=1)
            band = (within <= (chance[1] * within[:, -1])[:, None]).sum(axis=1)
            keys = labels * bands + np.minimum(band, bands - 1)
        proposed = banded.pick(keys, (chance[2] * sizes[keys]).astype(np.int64))
        excess = scores.energy(labels, stored[proposed]) - energies[keys]
        # Rounding at the very end of a cumulative sum may name a band without weight: no proposal at all.
        accepted = (chance[3] < np.exp(-excess)) & (lowest[keys] < np.inf)
        operations += rows.size + (PROPOSAL_OPERATIONS + 2 * bands) * size
        now = float(arrivals[-1])
        horizon = unit + float(np.log(now))
        times = unit + np.log(arrivals[accepted])
        before = len(rang)
        closed = False
        for slot, key, time in zip(proposed[accepted].tolist(), keys[accepted].tolist(), times.tolist(), strict=True):
            if slot not in rang:
                rang[slot] = time
                seen[key] = seen.get(key, 0) + 1
                if seen[key] == sizes[key]:
                    lowest[key] = np.inf
                    weights[key // bands, key % bands] = 0.0
                    rows[key // bands] = weights[key // bands].sum()
                    closed = True
        if closed and rows.sum() < _FADED:
            old = unit
            unit, weights, rows = _weights(counts, lowest)
            now *= float(np.exp(old - unit))
            operations += BAND_OPERATIONS * sizes.size
            if unit == np.inf:
                horizon = np.inf
        if len(rang) == before:  # slots that rang hide the others, or the bands have become too wide
            size = min(2 * size, _MOST_PROPOSALS)
    rung = np.flatnonzero(rings <= horizon)
    rang.update(zip(slots[rung].tolist(), rings[rung].tolist(), strict=True))
    drawn.update(dict.fromkeys(sorted(rang, key=rang.__getitem__)[:count]))
    return operations


def _lowest_bands(lowest: Floats, sizes: Slots, most: int) -> Slots:
    """The bands of lowest energy that together hold at most so many slots."""
    candidates = np.arange(lowest.size)
    if lowest.size > 4 * most:
        candidates = lowest.argpartition(most)[:most]
    candidates = candidates[lowest[candidates] < np.inf]
    candidates = candidates[lowest[candidates].argsort(kind="stable")]
    return candidates[sizes[candidates].cumsum() <= most]


def _clocks(
    scores: Scores,
    banded: Banded,
    stored: npt.NDArray[Any],
    keys: Slots,
    sizes: Slots,
    generator: np.random.Generator,
) -> tuple[Slots, Floats]:
    """All slots of some bands, and the logarithm of the time at which the clock of each rings."""
    held = sizes[keys]
    positions = np.arange(int(held.sum())) - np.repeat(held.cumsum() - held, held)
    keys = np.repeat(keys, held)
    slots = banded.pick(keys, positions)
    rings = np.log(generator.standard_exponential(slots.size))
    rings += scores.energy(keys // banded.counts.shape[1], stored[slots])
    return slots, rings


def _weights(counts: Slots, lowest: Floats) -> tuple[float, Floats, Floats]:
    """The lowest energy of all bands; relative to it size times exp(-energy) of each; sums over each class."""
    unit = float(lowest.min())
    if unit == np.inf:
        return unit, np.zeros(counts.shape), np.zeros(len(counts))
    weights = np.exp(unit - lowest).reshape(counts.shape)
    weights *= counts
    return unit, weights, weights.sum(axis=1)
