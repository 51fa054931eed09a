"""A sweep on a real cluster of two nodes, one of which is lost: everything ends, with the bits of local runs.

`benchmarks/sweep_on_ray.py` does the same with more runs, and kills the sweep itself, too.
"""

from __future__ import annotations

import runpy
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from budgeted.bench.sweep import places, sweep
from budgeted.runs.config import RunConfig
from budgeted.runs.run import start
from tests.markdown import ROOT

RUN = RunConfig(method="er", model="mlp", slots=30, limit=300, eval_every=150, checkpoint_every=10)


@pytest.mark.timeout(600)  # two nodes take half a minute to start on a machine that is at work
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_lost_node_costs_nothing_but_time() -> None:
    ray = pytest.importorskip("ray")
    from budgeted.bench.on_ray import RayTasks

    bench = runpy.run_path(str(ROOT / "benchmarks" / "sweep_on_ray.py"))
    runs = [RUN, replace(RUN, seed=2)]
    # sockets of Ray must have short names
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-", ignore_cleanup_errors=True) as name:
        out = Path(name) / "runs"
        expected = [start(run, Path(name) / f"local-{run.seed}") for run in runs]
        with bench["cluster"](Path(name) / "r") as (address, second):
            killer = Thread(target=_kill_half_way, args=(bench, out, second))
            killer.start()
            try:
                ended = list(sweep(runs, out, None, RayTasks(address)))
            finally:
                killer.join()
                ray.shutdown()
        assert [error for _, error in ended] == [None, None]
        found = [bench["found"](out)[place.folder.name] for place in places(runs, out)]
        keys = ("weights_sha256", "records_sha256", "spent", "a_auc", "a_last")
        assert found == [tuple(summary[key] for key in keys) for summary in expected]
        assert second.returncode is not None


def _kill_half_way(bench: dict[str, Any], out: Path, second: Any) -> None:
    """As soon as both runs have checkpoints, one on each node; a run may be quicker than that."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and bench["under_way"](out) < 2:
        if len(list(out.glob("*/summary.json"))) == 2:
            break
        time.sleep(0.02)
    bench["kill_group"](second)
