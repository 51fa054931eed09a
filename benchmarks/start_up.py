"""What it takes to begin: CPU seconds of `budgeted --help`, of every list, and of importing the learner beside torch.

Every command is run several times as a process of its own, from its start to the end of its teardown, and the least
counts: what comes on top is other work of the machine. The commands take turns, so that a busy minute falls on all of
them. Bytecode is kept in a folder of this benchmark, as an installed package has it.

    python benchmarks/start_up.py --json results/timing/start_up.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import get_args

from budgeted.cli.listing import What
from budgeted.runs.environment import environment

MOST_SECONDS, MOST_RATIO = 0.5, 1.1


def cpu_seconds(command: list[str], cache: str) -> float:
    """Of the command and what it starts."""
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env={**surroundings, "PYTHONPYCACHEPREFIX": cache})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=7, help="runs of every command")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()
    python = sys.executable
    commands = {"--help": [python, "-m", "budgeted", "--help"]}
    commands |= {f"list {what}": [python, "-m", "budgeted", "list", what] for what in get_args(What)}
    commands["import torch"] = [python, "-c", "import torch"]
    commands["from budgeted import Learner"] = [python, "-c", "from budgeted import Learner"]
    with tempfile.TemporaryDirectory() as cache:
        for command in commands.values():  # writes the bytecode
            cpu_seconds(command, cache)
        rounds = [
            {name: cpu_seconds(command, cache) for name, command in commands.items()} for _ in range(arguments.times)
        ]
    seconds = {name: min(each[name] for each in rounds) for name in commands}
    for name, spent in seconds.items():
        print(f"{spent:6.3f} s  {name}")
    ratio = seconds["from budgeted import Learner"] / seconds["import torch"]
    slowest = max(spent for name, spent in seconds.items() if "import" not in name)
    print(f"slowest of help and lists {slowest:.2f} s (at most {MOST_SECONDS}), import over torch's own {ratio:.3f} "
          f"(at most {MOST_RATIO})")  # fmt: skip
    if arguments.json:
        record = {"machine": environment(1, "cpu"), "cpu_seconds": seconds, "import_over_torch": ratio}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
