"""Does every method end a default run on the embedded digits within a minute? CPU seconds of the command, both streams.

    python benchmarks/methods_on_digits.py [--json results/timing/methods_on_digits.json] [--methods NAME …]

Every run is `budgeted run --method NAME --dataset digits --stream STREAM`, a process of its own, one at a time; import,
stream, evaluations and checkpoints are in its seconds. One method's run is also killed when half of its stream has
passed, and resumed: it must end with the weights and records of the other. The file is written after every run, and
runs that it holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from budgeted.methods import METHODS
from budgeted.runs.environment import environment
from budgeted.runs.folder import RECORDS, SUMMARY

STREAMS = ("gaussian", "disjoint")
MOST_SECONDS = 60.0
COMPOSED = ("lider-x-der",)
"""compositions of the paper's tables"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("results/timing/methods_on_digits.json"))
    parser.add_argument("--methods", nargs="+", default=[*METHODS, *COMPOSED])
    parser.add_argument("--killed", default="x-der", help="the method whose run on the Gaussian stream is also killed")
    chosen = parser.parse_args()
    record: dict[str, Any] = {"machine": environment(1, "cpu"), "most_seconds": MOST_SECONDS, "runs": {}}
    if chosen.json.exists():
        record["runs"] = json.loads(chosen.json.read_text(encoding="utf-8"))["runs"]
    for name in chosen.methods:
        for stream in STREAMS:
            found = record["runs"].setdefault(name, {})
            if stream not in found:
                found[stream] = timed(name, stream)
                print(f"{name:12} {stream:9} {found[stream]['cpu_seconds']:6.1f} CPU s", flush=True)
                chosen.json.write_text(json.dumps(record, indent=1) + "\n")
    if "killed" not in record["runs"].get(chosen.killed, {"killed": None}):
        record["runs"][chosen.killed]["killed"] = killed(chosen.killed, record["runs"][chosen.killed]["gaussian"])
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record["runs"]))


def command(name: str, stream: str, folder: Path) -> list[str]:
    flags = ["--method", name, "--dataset", "digits", "--stream", stream, "--out", str(folder)]
    return [sys.executable, "-m", "budgeted", "run", *flags]


def timed(name: str, stream: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        before = children()
        subprocess.run(command(name, stream, folder), check=True, capture_output=True)
        return {"cpu_seconds": round(children() - before, 2), **ending(folder)}


def killed(name: str, whole: dict[str, Any]) -> dict[str, Any]:
    """Killed when half of the samples have passed, then resumed."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        running = subprocess.Popen(
            command(name, "gaussian", folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while passed(folder) < whole["samples"] / 2:
            if running.poll() is not None:
                raise SystemExit(f"{name} ended before it could be killed")
            time.sleep(0.05)
        running.kill()
        running.wait()
        at = passed(folder)
        subprocess.run(
            [sys.executable, "-m", "budgeted", "run", "--resume", str(folder)], check=True, capture_output=True
        )
        found = ending(folder)
        return {"after_samples": at, "same": all(found[key] == whole[key] for key in found)}


def passed(folder: Path) -> int:
    """Samples at the latest evaluation that is written."""
    records = folder / RECORDS
    lines = records.read_text(encoding="utf-8").splitlines(keepends=True) if records.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return int(json.loads(whole[-1])["samples"]) if whole else 0


def ending(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    return {
        key: summary[key] for key in ("samples", "iterations", "a_auc", "spent", "weights_sha256", "records_sha256")
    }


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(runs: dict[str, Any]) -> str:
    rows = ["| method | gaussian, CPU s | disjoint, CPU s |", "| --- | --- | --- |"]
    for name, found in runs.items():
        cells = (f"{found[stream]['cpu_seconds']:.0f}" if stream in found else "" for stream in STREAMS)
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
