"""The pages of `docs/how` from top to bottom in an empty folder, as a newcomer would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown import ROOT, fences

PAGES = sorted((ROOT / "docs" / "how").glob("*.md"))
EXPECTED = {
    "pictures": ["model.onnx", "model.json", "saved", "mine/summary.json", "mine/export-onnx/model.onnx"],
    "compare": ["accuracy.png", "runs/focal.py:Focal-2/summary.json"],
    "experiment": ["report/report.md", "report/digits-gaussian/accuracy.svg", "page.html"],
    "freeze": [],
    "paper": [],
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    """Python blocks are files, whose names are in their first lines; shell blocks are typed, in the page's order."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    blocks = sorted([*fences(page, "python"), *fences(page, "sh")], key=lambda block: block.line)
    assert any(block.language == "sh" for block in blocks)
    for block in blocks:
        if block.language == "python":
            named = re.match(r"# (\w+\.py)\n", block.text)
            assert named is not None, f"{page.name}, line {block.line}: the first line names the file"
            (tmp_path / named[1]).write_text(block.text)
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{page.name}, line {block.line}: {done.stderr[-2000:]}"
    for name in EXPECTED[page.stem]:
        assert (tmp_path / name).exists(), name


def test_the_first_program_is_a_dozen_lines() -> None:
    learn = next(block for block in fences(ROOT / "docs" / "how" / "pictures.md", "python") if "learn.py" in block.text)
    program = learn.text.split("\n", 1)[1]
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    example = (ROOT / "examples" / "learn_from_pictures.py").read_text(encoding="utf-8")
    assert example.split("\n", 1)[1].strip() == program.strip()  # benchmarks/learner_memory.py measures it
