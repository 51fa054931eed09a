"""The whole attack, at any size: kills, damage, odd commands and settings, odd data, a bad server, full disks, threads.

    python benchmarks/hostile.py [--seed 0] [--minutes 60] [--log FILE]
    python benchmarks/hostile.py --attack kills damages --cases kills=250 damages=1000
    python benchmarks/hostile.py --seed 0 --only damages:4711 kills:run:17

Each attack is a module of `tests/hostile`: a case is a number, from which and the seed all else follows. Cases run in
children of one prepared process. Prints counts for every attack and outcome, then every finding with the command that
repeats it; with --log a line of JSON for every case. Exit code 1 if there is any finding.

What counts as good: identical (a killed or damaged run ended bit for bit as if it had not been, nothing left behind),
ended before (it had ended when the kill came), refused (one printable line that says what to do, nothing changed), done
and begun (a command or setting that is fine), held (a promise about threads, disks and memory), same and other values
(`hostile_data.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hostile_data  # noqa: E402

from tests.hostile import attack, bombs, commands, damages, forked, kills, resources  # noqa: E402

BATCH = 50


@dataclass(frozen=True)
class Result:
    """One case of any attack."""

    attack: str
    case: str
    what: str
    outcome: str
    detail: str = ""
    kills: int = 0


def kill_cases(count: int) -> Iterator[str]:
    """Every operation of one run and one series of saves, then by chance; a sweep in twenty.

    Of few cases half are spread over the operations.
    """
    every = [f"every:run:{i + 1}" for i in range(kills.whole_run(kills.RunConfigKey(0)).operations)]
    every += [f"every:save:{i + 1}" for i in range(kills.whole_save("al-sar", (4, 8, 12)).operations)]
    some = (f"{('sweep' if i % 20 == 0 else 'save' if i % 4 == 1 else 'run')}:{i}" for i in itertools.count())
    if len(every) > count // 2:
        every = every[:: max(1, 2 * len(every) // max(1, count))][: count // 2]
    return itertools.islice(itertools.chain(every, some), count)


def do_kills(cases: Iterable[str], seed: int) -> Iterator[Result]:
    for case in cases:
        it = kills.run_case(case, seed)
        yield Result("kills", case, it.what, it.outcome, it.detail, it.kills)


def do_damages(cases: Iterable[str], seed: int) -> Iterator[Result]:
    for case in cases:
        it = damages.run_case(case, seed)
        yield Result("damages", case, it.done, it.outcome, it.detail)


def do_resources(cases: Iterable[str], seed: int) -> Iterator[Result]:
    for case in cases:
        it = resources.run_case(case, seed)
        yield Result("resources", case, it.done, it.outcome, it.detail)


def in_batches(name: str, prefix: str) -> Callable[[Iterable[str], int], Iterator[Result]]:
    """Cases that run in one child, fifty at a time; where it dies, one by one."""

    def do(cases: Iterable[str], seed: int) -> Iterator[Result]:
        left = iter(cases)
        while batch := list(itertools.islice(left, BATCH)):
            found = _in_a_child(batch, prefix, seed)
            if isinstance(found, str):
                for case in batch:
                    alone = _in_a_child([case], prefix, seed)
                    yield from [Result(name, case, "", alone)] if isinstance(alone, str) else _of(name, alone)
            else:
                yield from _of(name, found)

    return do


def _of(name: str, found: list[commands.Outcome]) -> Iterator[Result]:
    return (Result(name, it.case.partition(":")[2], it.done, it.outcome, it.detail) for it in found)


def _in_a_child(batch: list[str], prefix: str, seed: int) -> list[commands.Outcome] | str:
    def work() -> list[commands.Outcome]:
        commands.stop_at_training()
        return [commands.run_case(f"{prefix}:{case}", seed) for case in batch]

    ended = forked.run(work, patience=60.0 * (1 + len(batch)), memory=forked.MEMORY)
    if ended.hung or ended.killed or ended.answer is None or isinstance(ended.answer, forked.Crash):
        return "HANG" if ended.hung else "DIED"
    found: list[commands.Outcome] = ended.answer
    return found


def do_data(cases: Iterable[str], seed: int) -> Iterator[Result]:
    left = list(cases)
    while left:
        found = hostile_data.run(left[: hostile_data.BATCH], seed, attack.MEMORY)
        yield from (Result("data", it.case, f"{it.reader}: {it.done}", it.outcome, it.detail) for it in found)
        left = left[len(found) :]


def do_server(cases: Iterable[str], seed: int) -> Iterator[Result]:
    """The hostile server's cases are tests; each is one case."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/hostile/test_downloads.py"]
    for _ in cases:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        for line in ended.stdout.splitlines():
            if match := re.match(r"\S+::(.+?) (PASSED|FAILED|ERROR)", line):
                yield Result("server", match[1], "", "held" if match[2] == "PASSED" else match[2])


@dataclass(frozen=True)
class Attack:
    """One kind, with as many cases as it has unless told."""

    do: Callable[[Iterable[str], int], Iterator[Result]]
    cases: Callable[[int], Iterable[str]]
    usual: int
    good: tuple[str, ...]


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


ATTACKS = {
    "kills": Attack(do_kills, kill_cases, 400, kills.GOOD),
    "damages": Attack(do_damages, numbers, 5_000, damages.GOOD),
    "commands": Attack(in_batches("commands", "command"), numbers, 10_000, commands.GOOD),
    "settings": Attack(in_batches("settings", "settings"), numbers, 70_000, commands.GOOD),
    "data": Attack(do_data, lambda n: [*(f"bomb:{name}" for name in bombs.BOMBS), *numbers(n)], 20_000, attack.GOOD),
    "server": Attack(do_server, lambda n: ["all"] * min(n, 1), 1, ("held",)),
    "resources": Attack(do_resources, lambda n: list(resources.CASES)[:n], 100, ("held",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument(
        "--cases", nargs="+", default=[], help="of every attack, or NAME=NUMBER; their own if not given"
    )
    parser.add_argument("--first", type=int, default=0, help="cases to pass over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after these")
    parser.add_argument("--only", nargs="+", help="these cases, as ATTACK:CASE, and what came of each")
    parser.add_argument("--log", type=Path, help="a line of JSON for every case")
    chosen = parser.parse_args()
    logging.getLogger("budgeted").setLevel(logging.ERROR)
    forked.prepare()
    end, results = time.monotonic() + 60 * chosen.minutes, []
    log = open(chosen.log, "a") if chosen.log else None  # noqa: SIM115
    for result in run(chosen):
        results.append(result)
        if chosen.only:
            print(f"{result.attack}:{result.case} ({result.what}): {result.outcome}: {result.detail}")
        if log is not None:
            print(json.dumps(result.__dict__), file=log, flush=True)
        if time.monotonic() > end:
            print(f"stopped after {chosen.minutes} minutes\n")
            break
    return report(results, chosen.seed)


def run(chosen: argparse.Namespace) -> Iterator[Result]:
    if chosen.only:
        for name, case in (each.split(":", 1) for each in chosen.only):
            yield from ATTACKS[name].do([case], chosen.seed)
        return
    told = dict(each.split("=") if "=" in each else ("all", each) for each in chosen.cases)
    for name in chosen.attack:
        it = ATTACKS[name]
        count = int(told.get(name) or told.get("all") or it.usual)
        yield from it.do(itertools.islice(it.cases(count), chosen.first, None), chosen.seed)


def report(results: list[Result], seed: int) -> int:
    print(f"seed {seed}\n\n| attack | cases | outcomes | findings |\n|---|---|---|---|")
    findings = []
    for name in dict.fromkeys(result.attack for result in results):
        mine = [result for result in results if result.attack == name]
        bad = [result for result in mine if result.outcome not in ATTACKS[name].good]
        findings += bad
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in Counter(r.outcome for r in mine).most_common())
        killed = f" ({sum(result.kills for result in mine):,} kills)" if name == "kills" else ""
        print(f"| {name} | {len(mine):,}{killed} | {counts} | {len(bad)} |")
    for result in findings:
        print(f"\n{result.outcome}: {result.attack}:{result.case}, {result.what[:400]}: {result.detail[:600]}")
        print(f'  python benchmarks/hostile.py --seed {seed} --only "{result.attack}:{result.case}"')
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
