"""A sweep on a real Ray cluster of two nodes on this machine, while things die: does it end as if nothing had?

The same small runs again and again: one after the other in this process; on the cluster, one of whose nodes is killed
half-way; and on the cluster, the sweep being killed (SIGKILL) or interrupted (Ctrl-C, SIGINT) half-way and called
again. All must come to the same bits: weights and records of every run.

    python benchmarks/sweep_on_ray.py --runs 20
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from budgeted.bench import recipes
from budgeted.bench.sweep import places
from budgeted.runs.run import start

RECIPE = """
from dataclasses import replace
from budgeted.bench.protocols import Recipe, over_seeds
from budgeted.runs.config import RunConfig

run = RunConfig(method="{method}", model="{model}", slots=60, limit={samples}, eval_every={every}, checkpoint_every=20)
recipe = Recipe("Small runs.", over_seeds([run, replace(run, method="er")], range(1, {seeds} + 1)))
"""
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PATIENCE = 120  # seconds until a node has to be there
ANSWER = 40  # seconds until it has to answer a question


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def node(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One node with a core, which lives as long as this: `ray start --block` and all that it starts, in a group."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    command = [*RAY, "start", "--block", "--num-cpus", "1", "--object-store-memory", "80000000", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """A machine that loses its power: everything on it at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Two nodes with a core each: the address, and the one that may be lost."""
    address = f"127.0.0.1:{free_port()}"
    head = ["--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false", "--temp-dir", str(folder)]
    with node(*head, "--node-ip-address", "127.0.0.1"):
        wait_for_nodes(address, 1)
        with node("--address", address) as second:
            wait_for_nodes(address, 2)
            yield address, second


def wait_for_nodes(address: str, count: int) -> None:
    ask = (
        f"import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='error'); "
        f"raise SystemExit(sum(node['Alive'] for node in ray.nodes()) < {count})"
    )
    deadline = time.monotonic() + PATIENCE
    while not _ends_well([sys.executable, "-c", ask]):
        if time.monotonic() > deadline:
            raise SystemExit(f"the cluster has no {count} nodes after {PATIENCE} s")
        time.sleep(0.5)


def _ends_well(command: list[str]) -> bool:
    """One that asks a node at its start may never get an answer: it is asked again."""
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=ANSWER).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def sweep(recipe: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    """What it says goes to a file beside its folder."""
    command = [sys.executable, "-m", "budgeted", "sweep", f"{recipe}:recipe", "--out", str(out), *more]
    with out.with_suffix(".said").open("ab") as said:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, preexec_fn=_hears_ctrl_c)


def _hears_ctrl_c() -> None:
    """What a shell starts in the background ignores it, and so would all that this starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until_half(out: Path, half: int, process: subprocess.Popen[bytes], others: int = 1) -> None:
    """So many runs are finished, and others have checkpoints to go on from."""
    while len(list(out.glob("*/summary.json"))) < half or under_way(out) < others:
        if process.poll() is not None:
            raise SystemExit(f"the sweep ended with {process.returncode} before it was half-way")
        time.sleep(0.05)


def under_way(out: Path) -> int:
    begun = {path.parent.parent for path in out.glob("*/checkpoints/0*")}
    return sum(not (folder / "summary.json").exists() for folder in begun)


def found(out: Path) -> dict[str, tuple[Any, ...]]:
    """What every run came to, wall-clock aside."""
    summaries = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/summary.json")}
    keys = ("weights_sha256", "records_sha256", "spent", "a_auc", "a_last")
    return {name: tuple(summary[key] for key in keys) for name, summary in summaries.items()}


def sittings(out: Path) -> list[int]:
    return [json.loads(path.read_text())["sittings"] for path in sorted(out.glob("*/summary.json"))]


def node_lost(recipe: Path, out: Path, half: int) -> int:
    with cluster(out.with_suffix(".ray")) as (address, second):
        process = sweep(recipe, out, "--on", address)
        wait_until_half(out, half, process, others=2)  # one on each node
        begun, finished = under_way(out), len(found(out))
        kill_group(second)
        print(f"a node killed after {finished} runs, {begun} under way", flush=True)
        return process.wait()


def sweep_ended(recipe: Path, out: Path, half: int, by: signal.Signals) -> int:
    with cluster(out.with_suffix(".ray")) as (address, _):
        process = sweep(recipe, out, "--on", address)
        wait_until_half(out, half, process)
        begun, finished = under_way(out), len(found(out))
        process.send_signal(by)
        code = process.wait()
        print(f"the sweep ended by {by.name} after {finished} runs, {begun} under way: exit code {code}", flush=True)
        said = out.with_suffix(".said").read_text().strip().splitlines()
        print(f"  its last words: {said[-1] if said else '(none)'}", flush=True)
        print(f"  {under_way(out)} runs have a checkpoint to go on from", flush=True)
        return sweep(recipe, out, "--on", address).wait()


ATTACKS: dict[str, Callable[[Path, Path, int], int]] = {
    "node": node_lost,
    "kill": partial(sweep_ended, by=signal.SIGKILL),
    "interrupt": partial(sweep_ended, by=signal.SIGINT),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--model", default="cnn8")
    parser.add_argument("--method", default="al-sar")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    options = parser.parse_args()
    # sockets of Ray must have short names
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        recipe = folder / "small.py"
        seeds, every = -(-options.runs // 2), options.samples // 2
        values = {"method": options.method, "model": options.model, "samples": options.samples}
        recipe.write_text(RECIPE.format(**values, every=every, seeds=seeds))
        half = options.runs // 2
        runs = recipes.recipe(f"{recipe}:recipe").runs
        for place in places(runs, folder / "local"):
            start(place.config, place.folder)
        expected = found(folder / "local")
        print(f"{len(expected)} runs in this process", flush=True)

        held = len(expected) == 2 * seeds
        for attack in options.attacks:
            out = folder / attack
            code = ATTACKS[attack](recipe, out, half)
            same, again = found(out) == expected, sum(count > 1 for count in sittings(out))
            print(f"  at last it ended with {code}; {again} runs went on; same bits: {same}", flush=True)
            held = held and same and code == 0
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
