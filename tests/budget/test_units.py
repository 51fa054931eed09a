from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgeted.budget import (
    BadQuantity,
    Compute,
    format_bytes,
    format_compute,
    parse_bytes,
    parse_compute,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7998016B", 7_998_016),
        ("7.6MB", 7_600_000),
        ("7.6MiB", 7_969_177),
        ("5.8GB", 5_800_000_000),
        ("1 KiB", 1024),
        ("1kB", 1000),
        ("1_000B", 1000),
        (".5MiB", 524_288),
        ("1e6B", 1_000_000),
    ],
)
def test_bytes_keep_decimal_and_binary_apart(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "compute"),
    [
        ("171.94TMAC", Compute(171_940_000_000_000, "paper")),
        ("350TFLOP", Compute(350_000_000_000_000, "real")),
        ("12MAC", Compute(12, "paper")),
        ("1.5 GFLOP", Compute(1_500_000_000, "real")),
    ],
)
def test_compute_names_its_rule(text: str, compute: Compute) -> None:
    assert parse_compute(text) == compute


@pytest.mark.parametrize("text", ["", "7.6", "7.6M", "MB", "-3MB", "7.6Mb", "1KB", "7,6,MB x", "3TMAC", "nanB"])
def test_bytes_that_could_mean_two_things_are_refused(text: str) -> None:
    with pytest.raises(BadQuantity, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["171.94", "171.94T", "3TFLOPs", "3TFLOPS", "3tmac", "3MiMAC", "7MB", "1e400"])
def test_compute_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity, match="compute"):
        parse_compute(text)


@given(st.integers(0, 10**20))
def test_printed_quantities_read_back(amount: int) -> None:
    for rule in ("paper", "real"):
        again = parse_compute(format_compute(amount, rule))
        assert again.rule == rule
        assert again.amount == pytest.approx(amount, rel=1e-4)
    assert parse_bytes(format_bytes(amount)) == pytest.approx(amount, rel=1e-3)


def test_print() -> None:
    assert format_compute(171_940_000_000_000, "paper") == "171.94TMAC"
    assert format_bytes(7_998_016) == "7.628MiB"
    assert format_bytes(1000) == "1000B"
    assert str(Compute(1_500, "real")) == "1.5kFLOP"
