"""When does a method gain? Accuracy less that of a reference with the same seed, over parts of the stream.

python benchmarks/gain_over_stream.py results/components --against vanilla --parts 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from budgeted.bench.table import Group, find_runs, group_runs
from budgeted.errors import UnknownName


def curves(group: Group) -> dict[int, np.ndarray]:
    """Accuracy at every periodic evaluation, by seed."""
    return {
        int(run.config["seed"]): np.array([100 * record["accuracy"] for record in run.periodic_records()])
        for run in group.runs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--against", required=True, help="row that the others are compared with, as `table` names it")
    parser.add_argument("--parts", type=int, default=3, help="equal parts of the stream")
    options = parser.parse_args()
    groups = {group.label: group for group in group_runs(find_runs(options.folders))}
    if options.against not in groups:
        raise UnknownName("row", options.against, groups)
    reference = curves(groups.pop(options.against))
    heads = " | ".join(f"part {part + 1} of {options.parts}" for part in range(options.parts))
    print(f"| points above {options.against} | seeds | {heads} |\n|---|---|{'---|' * options.parts}")
    for label, group in groups.items():
        own = curves(group)
        seeds = sorted({*own} & {*reference})
        gains = np.array([own[seed] - reference[seed] for seed in seeds])
        parts = [part.mean(1) for part in np.array_split(gains, options.parts, axis=1)]
        cells = " | ".join(f"{part.mean():+.1f} ({', '.join(f'{value:+.1f}' for value in part)})" for part in parts)
        print(f"| {label} | {', '.join(map(str, seeds))} | {cells} |")


if __name__ == "__main__":
    main()
