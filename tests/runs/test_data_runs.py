"""Runs on data that no memory holds: killed, resumed, decoded ahead, bad samples passed over; the same bits always."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.runs.config import RunConfig
from budgeted.runs.metrics import domain_metrics
from budgeted.runs.run import resume, start
from budgeted.streams import DataError, lazy, own
from tests.hostile.containers import imagenet as imagenet_files
from tests.runs.small import begun, same_end
from tests.streams.pictures import encoded, in_every_container, rows_in, write
from tests.streams.test_official_layouts import clear

SMALL: dict[str, Any] = {
    "method": "er", "model": "mlp", "slots": 6, "batch_size": 4, "eval_every": 5, "checkpoint_every": 2, "size": 8,
}  # fmt: skip


@pytest.fixture(autouse=True)
def lazy_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "HELD", 0)


def test_every_container_gives_the_same_run(tmp_path: Path) -> None:
    names = in_every_container(tmp_path, rows_in(tmp_path))
    ends = [start(RunConfig(dataset=name, **SMALL), tmp_path / str(i)) for i, name in enumerate(names.values())]
    assert ends[0]["classes"] == ["cat", "dog", "emu"]
    for end in ends[1:]:
        same_end(ends[0], end)


def _clear(root: Path) -> RunConfig:
    clear(root / "data" / "clear10")
    return RunConfig(dataset="clear10", data=str(root / "data"), stream="domain", **SMALL)


def _archives(root: Path) -> RunConfig:
    for name, content in imagenet_files().items():
        write(root / "data" / name, content)
    return RunConfig(dataset="imagenet", data=str(root / "data"), **{**SMALL, "eval_every": 2})


def _folder(root: Path) -> RunConfig:
    rows_in(root)
    return RunConfig(dataset=f"folder:{root / 'tree'}", **SMALL)


def _iterator(root: Path) -> RunConfig:
    rows_in(root)
    source = f"""
        from pathlib import Path

        def samples():
            for path in sorted(Path({str(root / "tree")!r}).rglob("*.jpeg")):
                yield str(path), path.parent.name
    """
    write(root / "mine.py", textwrap.dedent(source).encode())
    return RunConfig(dataset=f"{root / 'mine.py'}:samples", stream="arrival", **SMALL)


@pytest.mark.parametrize("make", [_clear, _archives, _folder, _iterator])
def test_stopped_at_any_sample_it_ends_as_if_never_stopped(make: Callable[[Path], RunConfig], tmp_path: Path) -> None:
    config = make(tmp_path)
    whole = start(config, tmp_path / "whole")
    for stop in (1, 3):
        same_end(whole, resume(begun(tmp_path / f"stopped{stop}", config, stop)))
    for threads in (0, 3):
        same_end(whole, start(replace(config, decode_threads=threads), tmp_path / f"threads{threads}"))


def test_accuracies_by_domain(tmp_path: Path) -> None:
    summary = start(_clear(tmp_path), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    by_domain = [record["by_domain"] for record in records if "by_domain" in record]
    assert [each["domain"] for each in by_domain] == [1, 2, 3]
    assert all(each["total"] == [4, 4, 4, 4] for each in by_domain)
    for each, record in zip(by_domain, [record for record in records if "by_domain" in record], strict=True):
        assert sum(each["correct"]) == sum(record["correct"])
    assert summary["domains"] == domain_metrics(by_domain)


def test_domain_metrics_against_a_matrix_by_hand() -> None:
    matrix = [[9, 5, 1], [8, 6, 2], [7, 4, 3]]
    records = [{"domain": i, "correct": row, "total": [10, 10, 10]} for i, row in enumerate(matrix)]
    found = domain_metrics(records)
    assert found == {
        "in": pytest.approx((0.9 + 0.6 + 0.3) / 3),
        "next": pytest.approx((0.5 + 0.2) / 2),
        "backward": pytest.approx((0.8 + 0.7 + 0.4) / 3),
        "forward": pytest.approx((0.5 + 0.1 + 0.2) / 3),
    }
    assert domain_metrics([{"domain": 0, "correct": [1], "total": [2]}])["next"] is None


def test_bad_samples_are_passed_over_only_where_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_in(tmp_path, each=12)
    good = "\n".join(
        ["path,label,split", *(f"{r.path},{r.word},{'test' if i % 4 == 0 else 'train'}" for i, r in enumerate(rows))]
    )
    table = write(
        tmp_path / "t.csv",
        (good + "\n" + "\n".join(["gone.png,cat,train", "gone.png,dog,train", "gone.png,emu,test"])).encode(),
    )
    config = RunConfig(dataset=f"manifest:{table}", skip_bad=True, **SMALL)
    whole = start(config, tmp_path / "whole")
    assert (whole["samples"], whole["skipped"]) == (27, 2)
    assert all("gone.png does not exist" in line for line in whole["skipped_first"])
    for stop in (10, 28):
        again = resume(begun(tmp_path / f"stopped{stop}", config, stop))
        same_end(whole, again)
        assert (again["skipped"], again["skipped_first"]) == (2, whole["skipped_first"])
    with pytest.raises(DataError, match=r"gone\.png does not exist"):
        start(replace(config, skip_bad=False), tmp_path / "strict")
    flags = ["--method", "er", "--model", "mlp", "--slots", "6", "--size", "8", "--skip-bad"]
    assert main(["run", "--dataset", f"manifest:{table}", *flags, "--out", str(tmp_path / "shown")]) == 0
    assert "2 bad samples were passed over; the first: " in capsys.readouterr().out


def test_test_images_that_are_not_held_give_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _folder(tmp_path)
    held = start(config, tmp_path / "held")
    monkeypatch.setattr(lazy, "HELD_TEST", 0)
    monkeypatch.setattr("budgeted.learner.evaluate._CHUNK", 2)
    same_end(held, start(config, tmp_path / "decoded"))


def test_relative_names_and_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _iterator(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = RunConfig(dataset="mine.py:samples", stream="arrival", **SMALL)
    folder = begun(tmp_path / "run", config, 3)
    other = begun(tmp_path / "other", RunConfig(dataset="folder:tree", **SMALL), 3)
    os.chdir("/")
    assert resume(other)["samples"] == 15
    write(tmp_path / "mine.py", (tmp_path / "mine.py").read_bytes() + b"\n# another version\n")
    with pytest.raises(BudgetedError, match=r"mine\.py is not what it was"):
        resume(folder)


def test_pictures_as_they_are_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(10):
        write(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", encoded(i, "PNG", 10 + i, 14))
    flags = ["--dataset", f"folder:{tmp_path / 'photos'}", "--method", "er", "--model", "mlp", "--slots", "4"]
    assert main(["run", *flags, "--out", str(tmp_path / "no")]) == 2
    assert "pass size=PIXELS (--size) to resize them all" in capsys.readouterr().err
    assert main(["run", *flags, "--size", "8", "--resize", "crop", "--out", str(tmp_path / "yes"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["classes"], summary["samples"]) == (["a", "b"], 8)
    assert main(["run", *flags, "--size", "8", "--resize", "stretch", "--out", str(tmp_path / "odd")]) == 2
    assert "unknown resize policy 'stretch'" in capsys.readouterr().err
