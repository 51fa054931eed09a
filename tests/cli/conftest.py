"""Runs that several files look at, none writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from budgeted.cli import main
from tests.cli.small import MEMORY, QUICK


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods under two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("vanilla", "er"):
        for seed in ("1", "2"):
            out = ["--method", method, "--seed", seed, "--out", str(folder / f"{method}-{seed}"), "--json"]
            assert main(["run", *QUICK, *MEMORY, *out]) == 0
    return folder
