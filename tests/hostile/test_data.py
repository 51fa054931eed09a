"""Every bomb, and a few hundred cases of the attack that `benchmarks/hostile_data.py` runs at any size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from budgeted.errors import BudgetedError
from tests.hostile import attack, bombs, valid

ROOT = Path(__file__).resolve().parents[2]
CASES = 600


def run(*arguments: str) -> dict[str, attack.Outcome]:
    """The attack in a process of its own, where memory is confined and warnings are errors."""
    command = [sys.executable, "-W", "error", "-m", "tests.hostile.attack", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    outcomes = [attack.Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"dead after {outcomes[-1:]}: {done.stderr[-500:]}"
    return {each.case: each for each in outcomes}


@pytest.fixture(scope="module")
def exploded() -> dict[str, attack.Outcome]:
    return run("--only", *(f"bomb:{name}" for name in bombs.BOMBS))


@pytest.mark.parametrize("name", bombs.BOMBS)
def test_a_bomb_is_refused_in_one_line_or_does_no_harm(name: str, exploded: dict[str, attack.Outcome]) -> None:
    found = exploded[f"bomb:{name}"]
    assert found.outcome == ("same" if bombs.BOMBS[name].same_as else "refused"), found
    assert bombs.BOMBS[name].words in found.detail


def test_damaged_files_are_refused_or_read_as_they_were() -> None:
    outcomes = run("--cases", f"0:{CASES}")
    assert len(outcomes) == CASES
    assert [each for each in outcomes.values() if each.outcome not in attack.GOOD] == []
    # The attack is one: every reader is met, most damage is seen, some does no harm.
    assert {each.reader for each in outcomes.values()} == set(attack.TARGETS)
    counts = Counter(each.outcome for each in outcomes.values())
    assert counts["refused"] > CASES / 3
    assert counts["same"] > CASES / 100


class TwoLines(BudgetedError):
    """No error of ours can be more than one line: this one says otherwise than it was told."""

    def __str__(self) -> str:
        return "two\nlines"


def test_the_attack_sees_what_it_looks_for(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    good = valid.TARGETS["npz"]

    def judged(load: object) -> str:
        return attack._judge("0", "npz", "", tmp_path, load, "right", checksum=True).outcome  # type: ignore[arg-type]

    def raises(problem: BaseException) -> object:
        def load(_: Path) -> None:
            raise problem

        return load

    def writes(place: Path) -> None:
        (place.parent / "outside").write_bytes(b"")
        raise BudgetedError("refused")

    def waits(_: Path) -> None:
        while True:
            pass

    def hungry(_: Path) -> None:
        try:
            raise MemoryError
        except MemoryError as problem:
            raise BudgetedError("damaged") from problem

    def other(_: Path) -> object:
        (mine := tmp_path / "mine.npz").write_bytes(good.files()["mine.npz"])
        data = good.load(tmp_path)
        mine.unlink()
        return data

    assert judged(raises(BudgetedError("one line"))) == "refused"
    assert judged(raises(TwoLines("refused"))) == "NOT ONE LINE"
    assert judged(raises(ValueError("oops"))) == "OTHER EXCEPTION"
    assert judged(hungry) == "OUT OF MEMORY"
    assert judged(other) == "OTHER CONTENT"
    assert judged(writes) == "WROTE FILES"
    limit, attack.SECONDS = attack.SECONDS, 0.05
    try:
        assert judged(waits) == "HANG"
    finally:
        attack.SECONDS = limit
