"""Quantities with their unit in the name: bytes in decimal or binary multiples, compute under a named rule.

>>> parse_bytes("7.6MiB"), parse_bytes("7.6MB")
(7969177, 7600000)
>>> parse_compute("171.94TMAC")
Compute(amount=171940000000000, rule='paper', each=False)
>>> print(parse_compute("350TFLOP"))
350TFLOP
>>> print(parse_compute("2GFLOP/sample"))
2GFLOP/sample
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from budgeted.errors import BudgetedError

Rule = Literal["paper", "real"]
RULES: tuple[Rule, ...] = ("paper", "real")
UNIT_OF_RULE: dict[Rule, str] = {"paper": "MAC", "real": "FLOP"}
RULE_OF_UNIT: dict[str, Rule] = {"MAC": "paper", "FLOP": "real"}

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
# a comma groups three digits; 7,6 could be a decimal and is refused
_NUMBER = r"(?P<number>(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d{1,2})?|\.\d+)"
_QUANTITY = re.compile(rf"\s*{_NUMBER}\s*(?P<unit>[A-Za-z]*)\s*")


class BadQuantity(BudgetedError):
    """A quantity that cannot be read, or whose unit could mean two things."""


@dataclass(frozen=True, slots=True)
class Compute:
    """An amount of compute under one rule: MAC under `paper`, FLOP under `real`."""

    amount: int
    rule: Rule
    each: bool = False
    """for every sample of the stream, instead of all of it"""

    @property
    def unit(self) -> str:
        """What it is counted in."""
        return UNIT_OF_RULE[self.rule] + ("/sample" if self.each else "")

    def over(self, samples: int) -> Compute:
        """For so many samples together."""
        return Compute(self.amount * samples, self.rule) if self.each else self

    def __str__(self) -> str:
        return format_compute(self.amount, self.rule) + ("/sample" if self.each else "")


def parse_compute(text: str) -> Compute:
    """Read `171.94TMAC` (rule `paper`) or `350TFLOP` (rule `real`), or a rate such as `2GFLOP/sample`."""
    total, slash, per = text.partition("/")
    if slash:
        if per.strip() not in ("sample", "samples"):
            raise BadQuantity(f"cannot read {text!r} as compute: a rate is for every sample, as in 2GFLOP/sample")
        return replace(parse_compute(total), each=True)
    number, unit = _split(text, "compute", "171.94TMAC (rule paper) or 350TFLOP (rule real)")
    for name, rule in RULE_OF_UNIT.items():
        prefix = unit.removesuffix(name)
        if unit.endswith(name) and prefix in _DECIMAL:
            return Compute(_whole(number * _DECIMAL[prefix]), rule)
    raise BadQuantity(
        f"cannot read {text!r} as compute: write it with its rule's unit, as in 171.94TMAC (rule paper, "
        "one per multiply-accumulate) or 350TFLOP (rule real, operations as executed)"
    )


def parse_bytes(text: str) -> int:
    """Read `7998016B`, `7.6MB` (decimal, 10^6) or `7.6MiB` (binary, 2^20); a fraction of a byte is dropped."""
    number, unit = _split(text, "bytes", "7998016B, 7.6MB (10^6) or 7.6MiB (2^20)")
    prefix = unit.removesuffix("B")
    factor = _BINARY.get(prefix, _DECIMAL.get(prefix)) if unit.endswith("B") else None
    if prefix == "K":  # KB is written for both 1,000 and 1,024: refuse rather than guess
        factor = None
    if factor is None:
        raise BadQuantity(
            f"cannot read {text!r} as bytes: write 7998016B, 7.6MB (decimal, 10^6) or 7.6MiB (binary, 2^20)"
        )
    return _whole(number * factor)


def format_compute(amount: int, rule: Rule, digits: int = 5) -> str:
    """Print an amount of compute so that `parse_compute` reads it again (to `digits` figures)."""
    return _scaled(amount, _DECIMAL, digits) + UNIT_OF_RULE[rule]


def format_bytes(count: int, digits: int = 4) -> str:
    """Print bytes in binary multiples, under their right name: `7.628MiB`."""
    return _scaled(count, {"": 1, **_BINARY}, digits) + "B"


def _split(text: str, kind: str, example: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None or len(match["number"]) > 100:  # thousands of digits are no quantity, and no number to Python
        raise BadQuantity(f"cannot read {text!r} as {kind}: write a number and a unit, as in {example}")
    return Fraction(match["number"].replace("_", "").replace(",", "")), match["unit"]


def _whole(amount: Fraction) -> int:
    return amount.numerator // amount.denominator


def _scaled(amount: int, multiples: dict[str, int], digits: int) -> str:
    prefix, factor = max(
        ((name, size) for name, size in multiples.items() if size <= max(abs(amount), 1)),
        key=lambda item: item[1],
    )
    if factor == 1:
        return f"{amount}{prefix}"
    text = f"{amount / factor:.{digits}g}"
    return (text if "e" not in text else str(round(amount / factor))) + prefix
