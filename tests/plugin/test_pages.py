"""The pages on the plug-in say what is so: snippets print what is shown, diffs run on both sides, examples run."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

from budgeted.budget import BudgetSpent
from budgeted.plugin import AdaptiveFreezing
from tests.markdown import ROOT, anchors, fences, links, run
from tests.test_readme import sides

PLUGIN = ROOT / "docs" / "plugin.md"
PAGES = [ROOT / "docs" / "integrations" / f"{name}.md" for name in
         ("accelerate", "accumulation", "autocast", "checkpointing", "compile", "ddp")]  # fmt: skip
EXAMPLES = {
    "freezing_in_your_loop": ["--epochs", "1"],
    "retrieval_in_your_loop": ["--samples", "200"],
    "precision_and_accumulation": ["--steps", "3"],
    "two_processes": ["--steps", "3"],
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_run_and_print_what_the_page_shows(page: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)  # one for a process: another test may have made it
    names: dict[str, Any] = {"__name__": page.stem}
    snippets = fences(page, "python")
    assert snippets
    with torch.random.fork_rng():
        for snippet in snippets:
            assert run(snippet.text, str(page), snippet.line, names) == snippet.output, f"{page.name}:{snippet.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_the_loop_runs_before_and_after_and_freezes() -> None:
    before, after, added = sides(fences(PLUGIN, "diff")[0].text)
    assert len(added) == 3  # as the text says
    plain: dict[str, Any] = {"__name__": "before"}
    names: dict[str, Any] = {"__name__": "after"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        run(before, str(PLUGIN), 0, plain)
        torch.manual_seed(0)
        run(after, str(PLUGIN), 0, names)
    freezing = names["freezing"]
    assert isinstance(freezing, AdaptiveFreezing)
    assert freezing.steps == len(plain["batches"])
    assert 0 < freezing.spent.real <= 20e9
    assert freezing.frozen_share > 0.1
    assert float(names["loss"].detach()) < 1.5  # and yet it learned: ln(10) is guessing


def test_a_small_budget_stops_the_same_loop() -> None:
    _, after, _ = sides(fences(PLUGIN, "diff")[0].text)
    with torch.random.fork_rng(), pytest.raises(BudgetSpent):
        run(after.replace("20GFLOP", "1GFLOP"), str(PLUGIN), 0, {"__name__": "after"})


def test_retrieval_runs_before_and_after() -> None:
    before, after, added = sides(fences(PLUGIN, "diff")[1].text)
    assert len(added) == 6  # as the text says
    for source, replayed in ((before, False), (after, True)):
        model = torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stream = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(9)]
        names: dict[str, Any] = {"model": model, "optimizer": optimizer, "stream": stream}
        run(source, str(PLUGIN), 0, names)
        assert ("memory" in names) == replayed
        if replayed:
            assert len(names["memory"]) == 40
            assert names["retrieval"].retrieval.draws == 9


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / f"{name}.py"
    if name == "two_processes":  # processes that it starts must find its function: it runs as a program
        command = [sys.executable, str(path), *EXAMPLES[name]]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        sums = re.findall(r"sum of weights (\S+),", printed)
        assert len(sums) == 2
        assert len(set(sums)) == 1
        return
    monkeypatch.setattr(sys, "argv", [str(path), *EXAMPLES[name]])
    with torch.random.fork_rng():
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "AdaptiveFreezing(AdaptivePrefix" in printed
    if name == "freezing_in_your_loop":
        assert "bit for bit the same" in printed
