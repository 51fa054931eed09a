"""Damaged and malicious data files, as many as wanted: is each refused in one line, or read as it was?

    python benchmarks/hostile_data.py [--cases 20000] [--seed 0] [--minutes 30]
    python benchmarks/hostile_data.py --seed 0 --only 4711 "bomb:npz of 3 GiB"

The attack of `tests/hostile` in a process of its own with a limit of memory; where that process dies or stands still,
the case is a finding and a new process goes on behind it. Prints counts for every reader and outcome, then every
finding with the command that repeats it. Exit code 1 if there is any.

Good outcomes: refused (a BudgetedError in one printable line), same (the content of the valid files), other values (a
sound data set with other numbers, where no checksum covers the damage). Everything else is a finding.
"""

from __future__ import annotations

import argparse
import json
import selectors
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.hostile import attack, bombs  # noqa: E402

#: Without a line for so long, a process stands still: four times the alarm that each case has.
SILENCE = 4 * attack.SECONDS
BATCH = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after these")
    parser.add_argument("--memory", type=int, default=attack.MEMORY, help="bytes that a case may take")
    parser.add_argument("--only", nargs="+", help="these cases, and what came of each")
    chosen = parser.parse_args()
    cases = chosen.only or [*(f"bomb:{name}" for name in bombs.BOMBS), *map(str, range(chosen.cases))]
    outcomes: list[attack.Outcome] = []
    end = time.monotonic() + 60 * chosen.minutes
    while len(outcomes) < len(cases) and time.monotonic() < end:
        outcomes += run(cases[len(outcomes) : len(outcomes) + BATCH], chosen.seed, chosen.memory)
    if chosen.only:
        for each in outcomes:
            print(f"{each.case} ({each.reader}; {each.done}): {each.outcome}: {each.detail}")
    return report(outcomes, len(cases), chosen.seed)


def run(cases: list[str], seed: int, memory: int) -> list[attack.Outcome]:
    """One process, until it ends or dies; what it died of is the last outcome."""
    command = [sys.executable, "-W", "error", "-m", "tests.hostile.attack"]
    command += ["--seed", str(seed), "--memory", str(memory), "--only", *cases]
    outcomes: list[attack.Outcome] = []
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with (
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        selectors.DefaultSelector() as ready,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        ready.register(process.stdout, selectors.EVENT_READ)
        patience = 60.0  # to load the libraries
        while len(outcomes) < len(cases):
            stopped = "DIED" if ready.select(patience) else "STOOD STILL"
            line = process.stdout.readline() if stopped == "DIED" else b""
            if not line:
                process.kill()
                said = process.stderr.read().decode(errors="replace").strip().rsplit("\n", 1)[-1]
                outcomes.append(attack.Outcome(cases[len(outcomes)], "unknown", "unknown", stopped, said))
                break
            outcomes.append(attack.Outcome(**json.loads(line)))
            patience = SILENCE
    return outcomes


def report(outcomes: list[attack.Outcome], asked: int, seed: int) -> int:
    counts = Counter((each.reader, each.outcome) for each in outcomes)
    findings = [each for each in outcomes if each.outcome not in attack.GOOD]
    print(f"{len(outcomes):,} of {asked:,} cases, seed {seed}\n")
    print("| reader | cases | refused | same | other values | findings |\n|---|---|---|---|---|---|")
    readers = sorted({each.reader for each in outcomes})
    for reader in [*readers, "all"]:
        rows = {outcome: n for (name, outcome), n in counts.items() if name == reader}
        if reader == "all":
            rows = dict(Counter(each.outcome for each in outcomes))
        good = [rows.get(outcome, 0) for outcome in attack.GOOD]
        total = sum(rows.values())
        print(f"| {reader} | {total} | {' | '.join(map(str, good))} | {total - sum(good)} |")
    for each in findings:
        print(f"\n{each.outcome}: case {each.case}, {each.reader}, {each.done}: {each.detail[:500]}")
        print(f'  python benchmarks/hostile_data.py --seed {seed} --only "{each.case}"')
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
