"""kill -9 at random moments, some inside a checkpoint write: do resumed runs end as if never killed?

    python benchmarks/kill_resume.py [--kills 20] [--seed 0]

Per method one run that is never killed and one that is killed again and again. A line for every kill, then a table: the
kills, how many of them left a half-written checkpoint behind, the steps executed against those of the run never killed,
and whether the hashes of the weights and of the records came out the same. Exit code 1 if any did not.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from budgeted.runs.counter import executed_steps

METHODS = ("vanilla", "er", "al-sar")
COMMAND = [sys.executable, "-c", "import sys; from budgeted.cli import main; sys.exit(main(sys.argv[1:]))", "run"]


@dataclass(frozen=True)
class Outcome:
    """What came of one method's run that was killed."""

    method: str
    kills: int
    inside_writes: int
    steps: int
    executed: int
    same: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="in all, shared out over the methods")
    parser.add_argument("--samples", type=int, default=700, help="of the stream")
    parser.add_argument("--model", default="cnn8")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    shares = [chosen.kills // len(METHODS) + (i < chosen.kills % len(METHODS)) for i in range(len(METHODS))]
    outcomes = []
    with TemporaryDirectory() as place:
        for method, kills in zip(METHODS, shares, strict=True):
            flags = [
                "--method",
                method,
                "--model",
                chosen.model,
                "--limit",
                str(chosen.samples),
                "--eval-samples",
                "100",
            ]
            whole = finish(["--out", f"{place}/{method}-whole", *flags])
            outcomes.append(kill_and_resume(method, kills, flags, Path(place) / f"{method}-killed", whole, rng))
    print("\n| method | kills | inside a write | steps | executed | ratio | weights and records |")
    print("|---|---|---|---|---|---|---|")
    for it in outcomes:
        ratio, verdict = it.executed / it.steps, "the same" if it.same else "DIFFER"
        print(
            f"| {it.method} | {it.kills} | {it.inside_writes} | {it.steps} | {it.executed} | {ratio:.3f} | {verdict} |"
        )
    return 0 if all(it.same and it.executed <= 1.2 * it.steps for it in outcomes) else 1


def kill_and_resume(
    method: str, kills: int, flags: list[str], folder: Path, whole: dict[str, Any], rng: random.Random
) -> Outcome:
    """Kill so many times, at moments spread over the run, then let it end."""
    steps = whole["iterations"]
    moments = sorted(rng.sample(range(10, int(0.97 * steps)), kills))
    inside = 0
    for number, moment in enumerate(moments):
        arguments = ["--resume", str(folder)] if number else ["--out", str(folder), *flags]
        in_a_write = rng.random() < 0.4
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait(process, folder, moment, in_a_write)
        time.sleep(0 if in_a_write else rng.random() / 20)
        process.kill()
        process.wait()
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"{method} ended by itself before kill {number + 1}: take more --samples")
        left = half_written(folder)
        inside += left
        where = "inside a checkpoint write" if left else "between writes"
        print(f"{method}: killed after {executed(folder)} executed steps, {where}", flush=True)
    ended = finish(["--resume", str(folder)])
    same = all(ended[key] == whole[key] for key in ("weights_sha256", "records_sha256", "spent", "samples"))
    return Outcome(method, kills, inside, steps, ended["executed_steps"], same)


def wait(process: subprocess.Popen[bytes], folder: Path, moment: int, in_a_write: bool) -> None:
    """Until so many steps are executed; for a moment inside a write the process is stopped there first."""
    while process.poll() is None:
        if executed(folder) >= moment:
            if not in_a_write:
                return
            if half_written(folder):
                process.send_signal(signal.SIGSTOP)
                if half_written(folder):
                    return
                process.send_signal(signal.SIGCONT)
        time.sleep(0.0003)


def executed(folder: Path) -> int:
    return executed_steps(folder / "executed_steps")


def half_written(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".*.part"))


def finish(arguments: list[str]) -> dict[str, Any]:
    ended = subprocess.run([*COMMAND, *arguments, "--json"], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    summary: dict[str, Any] = json.loads(ended.stdout)
    return summary


if __name__ == "__main__":
    sys.exit(main())
