"""The page on Lightning prints what it shows; the example, the demo and the pretraining run in small."""

from __future__ import annotations

import json
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from budgeted import cli
from budgeted.audit import ExecutedOnData
from budgeted.bench import bongard_recipes
from budgeted.models.llava_base import MADE, Pretraining
from budgeted.models.llava_lora import PROJECTOR
from budgeted.problems import llava_base
from tests.markdown import ROOT, anchors, fences, links, run
from tests.multimodal.small import drawn_base
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


def test_the_example_in_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn_base(tmp_path)
    path = ROOT / "examples" / "llava_bongard.py"
    given = ["--base", str(tmp_path), "--limit", "30", "--steps", "2", "--freezing", "random"]
    monkeypatch.setattr(sys, "argv", [str(path), *given, "--always", PROJECTOR])
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert re.match(r"ca random: [\d.]+% right, \d+ unparsed, executed \S+FLOP in 2 steps, [\d.]+% of the", said)


def test_the_demo_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BUDGETED_MODELS", str(tmp_path))
    monkeypatch.setattr(bongard_recipes, "STEPS", 2)
    drawn_base(Pretraining().folder)
    facts = {"cpu_seconds": 78.2, "spent": {"real": 2 * 10**12}, "accuracy": {"ca": 0.0}}
    (Pretraining().folder / MADE).write_text(json.dumps(facts))
    given = ["--part", "multimodal", "--out", str(tmp_path / "demo"), "--multimodal.policies", "constant"]
    assert cli.main(["demo", *given]) == 0
    first, second, third, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("llava-tiny, pretrained once in 78 CPU seconds (2TFLOP): 0.0% of the questions")
    assert second == "then 600 questions arrive, 2 steps of LoRA and projector:"
    assert re.match(r"  freezing constant +0\.0% right at the end, executed \S+FLOP \(100%\), \d+ CPU seconds", third)


def test_a_base_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDGETED_MODELS", str(tmp_path))
    monkeypatch.setattr(llava_base, "accuracy", lambda *given: 0.25)
    short = Pretraining(concepts=1, both=1, batch=8)
    with ExecutedOnData() as executed:
        folder = llava_base.make_base(short)
    assert folder == short.folder == tmp_path / f"llava-tiny-{short.digest[:16]}"
    made = json.loads((folder / MADE).read_text())
    assert made["accuracy"] == {"pn": 0.25, "ca": 0.25}
    assert made["spent"]["real"] == pytest.approx(executed.total, rel=0.01)
    before = (folder / MADE).stat().st_mtime_ns
    assert llava_base.make_base(short) == folder
    assert (folder / MADE).stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert len({replace(short, **{name: 3}).digest for name in ("concepts", "both", "seed", "world")}) == 4
