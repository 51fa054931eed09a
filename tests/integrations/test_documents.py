"""The page on the Trainer and the example say what is so, and run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.markdown import ROOT, anchors, fences, links, run

PAGE = ROOT / "docs" / "integrations" / "trainer.md"


def test_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    with torch.random.fork_rng():
        for snippet in fences(PAGE, "python"):
            assert run(snippet.text, str(PAGE), snippet.line, names) == snippet.output
    (diff,) = fences(PAGE, "diff")
    assert diff.text.count("\n+") == 1
    for path, anchor in links(PAGE):
        target = PAGE.parent / path if path else PAGE
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_the_example_runs_in_small(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["trainer.py", "--steps", "2"])
    with torch.random.fork_rng():
        runpy.run_path(str(ROOT / "examples" / "trainer.py"), run_name="__main__")
    plain, freezing = capsys.readouterr().out.splitlines()
    assert "plain: loss" in plain
    assert "0% of the backward not run" in plain
    assert "freezing: loss" in freezing
