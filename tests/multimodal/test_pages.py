"""The page on Lightning prints what it shows, and the example runs in small."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.markdown import ROOT, anchors, fences, links, run
from tests.test_readme import sides

LIGHTNING = ROOT / "docs" / "integrations" / "lightning.md"


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_the_page_on_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = fences(LIGHTNING, "python")
    names: dict[str, Any] = {"__name__": "page"}
    with torch.random.fork_rng():
        assert run(snippet.text, str(LIGHTNING), snippet.line, names) == snippet.output
    _, _, added = sides(fences(LIGHTNING, "diff")[0].text)
    assert len(added) == 2
    for path, anchor in links(LIGHTNING):
        target = LIGHTNING.parent / path if path else LIGHTNING
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("kind", ["ca", "pn"])
def test_the_example_in_small(kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / "llava_bongard.py"
    given = ["--kind", kind, "--steps", "2", "--pretraining", "2", "2", "--known", "40", "--test", "1"]
    monkeypatch.setattr(sys, "argv", [str(path), *given, "--policies", "constant"])
    with torch.random.fork_rng():
        runpy.run_path(str(path), run_name="__main__")
    pretrained, learned = capsys.readouterr().out.splitlines()
    assert "pretrained in" in pretrained
    assert re.match(rf"{kind} constant +accuracy [\d.]+% -> [\d.]+%, executed \S+FLOP, [1-9][\d.]+% of the", learned)
