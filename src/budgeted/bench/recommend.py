"""Which network, codec, batch, iterations and averages to take for a budget: from what our own runs came to.

Every choice that was ever measured is a candidate. What the budget buys with it, slots and steps, follows from its own
records. What it will come to is foretold by a Gaussian process over the configurations: A_AUC is a smooth function of
the logarithms of the stream's length, steps per sample, share of the stream that is stored, size of the network, bytes
of a slot, batch, learning rate and reach of the average, and differs by kinds (data, stream, method, its parts and
settings, codec, optimizer) by some amount. How fast it varies along each is fitted by the likelihood of the records.
The candidate whose foretold A_AUC less one standard deviation is highest is recommended, so that nothing wins by being
unknown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from budgeted.bench.outcomes import LEARNER, Outcome
from budgeted.budget import Compute, format_bytes, format_compute
from budgeted.errors import BudgetedError
from budgeted.streams import DatasetInfo

Floats: TypeAlias = npt.NDArray[np.float64]
_FAR = 0.7  # of the deviation that is foretold where nothing is known: from here on nothing near was measured


@dataclass(frozen=True)
class Asked:
    """A budget, and what it is for."""

    info: DatasetInfo
    stream: str
    samples: int
    nbytes: int
    compute: Compute


@dataclass(frozen=True)
class Candidate:
    """A choice under the budget that was asked for."""

    row: Outcome
    """as its records would be: with the slots and the steps that the budget buys"""
    a_auc: float
    deviation: float

    @property
    def safe(self) -> float:
        return self.a_auc - self.deviation


@dataclass(frozen=True)
class Recommendation:
    """The best candidates first, and what they stand on."""

    candidates: tuple[Candidate, ...]
    nearest: tuple[Outcome, ...]
    """the configurations that say most about the first"""
    configurations: int
    runs: int
    error: float
    """mean error of a configuration that is foretold from all others, in points"""
    within: float
    """share of them within two standard deviations"""
    covers: Mapping[str, tuple[str, ...]]
    """what the records have"""
    unmeasured: tuple[str, ...]
    """what was asked for and is not in the records"""


def recommend(asked: Asked, rows: Sequence[Outcome], model: str = "") -> Recommendation:
    """From these records; `model`: of this network alone."""
    alike = [row for row in rows if len(row.shape) == len(asked.info.input_shape)]
    choices: dict[str, list[Outcome]] = {}
    for row in alike:
        if not model or row.choice.get("model") == model:
            choices.setdefault(json.dumps([row.choice, row.batch_size], sort_keys=True), []).append(row)
    possible = [under for found in choices.values() if (under := _under(asked, found)) is not None]
    if not possible:
        raise BudgetedError(
            "nothing that was measured fits this budget: raise --memory or --compute, or plan one choice without "
            "--recommend"
        )
    fitted = Fitted(alike)
    means, deviations = fitted.foretell(possible)
    found = [Candidate(row, float(m), float(d)) for row, m, d in zip(possible, means, deviations, strict=True)]
    found.sort(key=lambda candidate: -candidate.safe)
    errors, spread = fitted.left_out
    closeness = fitted.closeness([found[0].row])[0]
    unmeasured = _unmeasured(asked, alike)
    if found[0].deviation > _FAR * fitted.unknown:
        unmeasured += ("anything near this: what is foretold is hardly more than the mean of all records",)
    return Recommendation(
        tuple(found),
        tuple(alike[place] for place in np.argsort(-closeness, kind="stable")[:5]),
        len(alike),
        sum(len(row.runs) for row in alike),
        float(np.abs(errors).mean()),
        float((np.abs(errors) <= 2 * spread).mean()),
        _covers(alike),
        unmeasured,
    )


def _covers(rows: Sequence[Outcome]) -> dict[str, tuple[str, ...]]:
    return {
        "data": tuple(sorted({row.dataset for row in rows})),
        "samples": tuple(f"{samples:,}" for samples in sorted({row.samples for row in rows})),
        "networks": tuple(sorted({str(row.choice.get("model", "")) for row in rows})),
        "codecs": tuple(sorted({row.parts["codec"] for row in rows})),
        "rates": tuple(f"{rate:g}" for rate in sorted({float(row.learner["learning_rate"]) for row in rows})),
        "averages": tuple(sorted({str(row.learner["average"]) for row in rows})),
    }


def _under(asked: Asked, found: Sequence[Outcome]) -> Outcome | None:
    """A choice as it would be under the budget; None if that does not pay for it. Costs are those of its records on
    streams of the nearest length; images of another size cost in proportion."""
    row = min(found, key=lambda each: abs(math.log(each.samples / asked.samples)))
    size = math.prod(asked.info.input_shape) / math.prod(row.shape)
    step = size * (row.step_paper if asked.compute.rule == "paper" else row.step_real)
    slots = min((asked.nbytes - row.fixed_bytes) / (row.slot_bytes * size), asked.samples)
    steps = asked.compute.over(asked.samples).amount / step
    if slots < asked.info.classes or steps < 1:
        return None
    return replace(
        row, dataset=asked.info.name, classes=asked.info.classes, shape=tuple(asked.info.input_shape),
        stream=asked.stream, samples=asked.samples, slots=slots, steps=steps, slot_bytes=row.slot_bytes * size,
        step_real=row.step_real * size, step_paper=row.step_paper * size,
    )  # fmt: skip


def _unmeasured(asked: Asked, rows: Sequence[Outcome]) -> tuple[str, ...]:
    same = [row for row in rows if (row.classes, row.shape) == (asked.info.classes, tuple(asked.info.input_shape))]
    known = sorted({row.dataset for row in rows})
    found = [] if asked.info.name in known else [f"{asked.info.name}: the records are of {', '.join(known)}"]
    if not same:
        return tuple(found)
    if asked.stream not in {row.stream for row in same}:
        found.append(f"a {asked.stream} stream")
    rule = asked.compute.rule
    each = asked.compute.over(asked.samples).amount / asked.samples
    costs = [row.steps * (row.step_paper if rule == "paper" else row.step_real) / row.samples for row in same]
    sizes = [row.fixed_bytes + row.slots * row.slot_bytes for row in same]
    quantities: list[tuple[float, list[float], Callable[[float], str]]] = [
        (asked.samples, [row.samples for row in same], lambda count: f"{count:,.0f} samples"),
        (asked.nbytes, sizes, lambda count: format_bytes(round(count), 3)),
        (each, costs, lambda amount: f"{format_compute(round(amount), rule, 3)} a sample"),
    ]
    for value, recorded, shown in quantities:
        low, high = min(recorded), max(recorded)
        if not 0.98 * low <= value <= 1.02 * high:
            found.append(f"{shown(value)}: the records have {shown(low)} to {shown(high)}")
    return tuple(found)


# -- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """Configurations as the model sees them."""

    numbers: Floats
    """[configurations, quantities]: logarithms to base 2"""
    kinds: npt.NDArray[np.str_]
    """[configurations, kinds]"""


def _described(rows: Sequence[Outcome]) -> Described:
    return Described(np.array([_numbers(row) for row in rows]), np.array([_kinds(row) for row in rows]))


def _numbers(row: Outcome) -> list[float]:
    pixels = math.prod(row.shape)
    rate, decay = float(row.learner["learning_rate"]), float(row.learner["average_decay"])
    return [
        math.log2(row.samples),
        math.log2(row.steps / row.samples),
        math.log2(min(1.0, row.slots / row.samples)),
        math.log2(row.step_real / row.batch_size),  # the network, and what the method runs beside it
        math.log2(row.slot_bytes / pixels),
        math.log2(row.batch_size),
        math.log2(rate),
        0.0 if row.learner["average"] == "none" else -math.log2(1 - decay),
        math.log2(row.classes),
        math.log2(pixels),
    ]


def _kinds(row: Outcome) -> list[str]:
    known = {f"learner.{name}" for name in (*LEARNER, "autocast")}  # lower precision is no choice of a learner's own
    rest = {k: v for k, v in row.choice.get("settings", {}).items() if k not in known and not k.startswith("codec.")}
    return [
        row.dataset,
        row.stream,
        str(row.choice["method"]),
        *row.parts.values(),
        str(row.learner["optimizer"]),
        json.dumps([row.choice.get("spend_savings", False), rest], sort_keys=True),
    ]


class Fitted:
    """A Gaussian process through the mean A_AUC of every configuration.

    Closeness of two configurations: exp of minus the sum of rate * difference ** 2 over the quantities, minus a fitted
    amount for each kind in which they differ. Seeds make noise of one fitted size.
    """

    def __init__(self, rows: Sequence[Outcome]) -> None:
        self._described = _described(rows)
        self._seeds = np.array([len(row.a_auc) for row in rows])
        results = np.array([float(np.mean(row.a_auc)) for row in rows])
        self._mean = float(results.mean())
        self._rest = results - self._mean
        quantities, kinds = self._described.numbers.shape[1], self._described.kinds.shape[1]
        spread = max(float(results.std()), 1e-3)
        self._usual = np.log([*[0.1] * quantities, *[0.3] * kinds, spread, 1.0])
        self._apart = _apart(self._described, self._described)
        bounds = [(usual - 4, usual + 4) for usual in self._usual]
        fitted = minimize(self._unlikeliness, self._usual, jac=True, method="L-BFGS-B", bounds=bounds)
        self._parameters: Floats = fitted.x
        self._factor = self._factored(self._parameters)

    def foretell(self, rows: Sequence[Outcome]) -> tuple[Floats, Floats]:
        """A_AUC of configurations, and its standard deviation."""
        across = self.closeness(rows)
        solved = cho_solve(self._factor, across.T)
        variance = self.unknown**2 - (across * solved.T).sum(1)
        return self._mean + solved.T @ self._rest, np.sqrt(np.maximum(variance, 0.0))

    def closeness(self, rows: Sequence[Outcome]) -> Floats:
        """[rows, records]: covariances."""
        return _kernel(_apart(_described(rows), self._described), self._parameters)

    @property
    def unknown(self) -> float:
        """Standard deviation where nothing near was measured."""
        return float(np.exp(self._parameters[-2]))

    @cached_property
    def left_out(self) -> tuple[Floats, Floats]:
        """Errors of configurations that are foretold from all others, and the deviations that were foretold."""
        inverse = cho_solve(self._factor, np.eye(len(self._rest)))
        return (inverse @ self._rest) / inverse.diagonal(), 1 / np.sqrt(inverse.diagonal())

    def _factored(self, parameters: Floats) -> tuple[Floats, bool]:
        noise = np.exp(2 * parameters[-1]) / self._seeds + 1e-6
        factor: tuple[Floats, bool] = cho_factor(_kernel(self._apart, parameters) + np.diag(noise), lower=True)
        return factor

    def _unlikeliness(self, parameters: Floats) -> tuple[float, Floats]:
        """Minus the logarithm of the likelihood, and of how usual the parameters are; and how it changes with them."""
        factor, kernel, values = self._factored(parameters), _kernel(self._apart, parameters), np.exp(parameters)
        solved = cho_solve(factor, self._rest)
        unusual = parameters - self._usual
        unlikely = self._rest @ solved / 2 + np.log(factor[0].diagonal()).sum() + (unusual**2).sum() / 2
        slope = (cho_solve(factor, np.eye(len(solved))) - np.outer(solved, solved)) / 2
        by_rates = -values[:-2] * np.einsum("ij,ijk->k", slope * kernel, self._apart)
        by_size = 2 * (slope * kernel).sum()
        by_noise = 2 * values[-1] ** 2 * (slope.diagonal() / self._seeds).sum()
        return float(unlikely), np.array([*by_rates, by_size, by_noise]) + unusual


def _apart(one: Described, other: Described) -> Floats:
    """[one, other, quantities and kinds]: squared differences of numbers; of kinds, whether they differ."""
    numbers = (one.numbers[:, None] - other.numbers[None]) ** 2
    return np.concatenate([numbers, (one.kinds[:, None] != other.kinds[None]).astype(np.float64)], axis=2)


def _kernel(apart: Floats, parameters: Floats) -> Floats:
    values = np.exp(parameters)
    found: Floats = values[-2] ** 2 * np.exp(-(apart @ values[:-2]))
    return found
