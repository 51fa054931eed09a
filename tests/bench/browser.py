"""A real browser without a window, and a thousand runs that need no training."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from budgeted.bench.query import Found, look
from budgeted.bench.table import RunResult
from tests.markdown import ROOT


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by playwright; a test that needs it is skipped, by name, where it is not there."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def many(count: int) -> Found:
    """Runs made up from recorded ones: other methods, streams, budgets and seeds; the curves are real."""
    known = look([ROOT / "results" / "components"]).runs
    found = []
    for number in range(count):
        run = known[number % len(known)]
        summary = copy.deepcopy(run.summary)
        config = summary["config"]
        row, seed = divmod(number, 4)
        config["method"] = ("er", "vanilla", "al", "sar", "al-sar", "mir", "aser", "der++")[row % 8]
        config["dataset"] = ("cifar10", "cifar100", "imagenet")[row // 8 % 3]
        config["stream"] = ("gaussian", "disjoint")[row // 24 % 2]
        config["iterations"] = 1.0 + row // 48
        config["retrieval"] = None
        config["seed"] = seed + 1
        summary["seed"] = seed + 1
        summary["a_auc"] = 0.3 + 0.4 * ((number * 7919) % 1000) / 1000
        summary["spent"] = {rule: round(value * (1 + row // 48)) for rule, value in summary["spent"].items()}
        found.append(RunResult(run.path, summary))
    return Found(tuple(found), (), ())


def written(folder: Path, text: str) -> str:
    """The address of a page in a file."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()
