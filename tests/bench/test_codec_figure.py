"""The figure and the table of codecs, from made-up runs whose differences are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

from budgeted.bench.codec_figure import codec_table, draw_codecs
from budgeted.bench.recipes import RECIPES, recipe
from budgeted.bench.table import Group, RunResult
from budgeted.errors import BudgetedError


def run(codec: str | None, memory: str | None, seed: int, auc: float, **settings: str) -> RunResult:
    config = {"codec": codec, "memory": memory, "seed": seed, "settings": settings, "limit": 5000}
    summary: dict[str, Any] = {
        "config": config, "samples": 5000, "a_auc": auc, "a_last": auc + 0.1, "slots": 200, "stored": 100,
        "bytes_by_item": {"memory": 30_000}, "codec_seconds": {"encode": 1.25, "decode": 2.5},
    }  # fmt: skip
    return RunResult(Path(f"{codec}-{memory}-{seed}"), summary)


GROUPS = [
    Group("raw", tuple(run(None, size, seed, 0.50 + 0.01 * seed) for size in ("2MB", "4MB") for seed in (1, 2))),
    Group("jpeg", (run("jpeg", "2MB", 2, 0.57, **{"codec.quality": "50"}), run("jpeg", "8MB", 1, 0.6))),
]


def test_the_figure_shows_differences_from_raw_paired_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(plt, "close", closed.append)
    draw_codecs(GROUPS, tmp_path / "codecs.png")
    assert (tmp_path / "codecs.png").stat().st_size > 5000
    above, below = closed[0].axes
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in above.get_lines()}
    assert lines["raw"] == [(2, pytest.approx(51.5)), (4, pytest.approx(51.5))]
    assert lines["jpeg quality=50"] == [(2, pytest.approx(57))]
    assert lines["jpeg"] == [(8, pytest.approx(60))]
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in below.get_lines()}
    assert lines["jpeg quality=50"] == [(2, pytest.approx(5))]  # of seed 2 alone
    assert lines["jpeg"] == []  # there is no raw with so many bytes
    monkeypatch.undo()
    plt.close(closed[0])


def test_the_table_has_what_a_slot_takes_and_what_the_codec_took() -> None:
    rows = codec_table(GROUPS).splitlines()
    assert len(rows) == 2 + 4
    assert "| 5,000 | 2,000,000 | jpeg quality=50 | 200 | 300 | 57.0" in rows[2]  # of the slots in use
    assert "| raw | 200 | 150 |" in rows[3]  # of all
    assert rows[2].endswith("| 1.2 | 2.5 |")


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetedError, match="compared with it"):
        draw_codecs(GROUPS[1:], tmp_path / "codecs.png")
    with pytest.raises(BudgetedError, match="equal --memory"):
        draw_codecs([Group("raw", (run(None, None, 1, 0.5),))], tmp_path / "codecs.png")
    with pytest.raises(BudgetedError, match="end its name"):
        draw_codecs(GROUPS, tmp_path / "codecs.txt")


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("codecs-")])
def test_the_recipe_has_every_codec_at_every_size_and_raw_beside_it(name: str) -> None:
    runs = recipe(name).runs
    for config in runs:
        config.build_settings(flips=True)  # every setting is known
    seeds = {config.seed for config in runs}
    per_seed = [config for config in runs if config.seed == min(seeds)]
    assert len(runs) == len(seeds) * len(per_seed)
    assert {config.memory for config in per_seed if config.codec == "raw"} == {"2MB", "4MB", "8MB"}
    assert {config.codec for config in per_seed} == {"raw", "jpeg", "webp", "ycc420", "half", "progressive"}
    assert {config.limit for config in runs} == {int(name.removeprefix("codecs-"))}
