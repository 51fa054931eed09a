"""Resident memory over a stream that no memory holds: a manifest of many rows over a pool of real JPEGs.

    python benchmarks/larger_than_memory.py POOL [--rows 12800 128000 1280000] [--size 64] [--walk 1.0] [--figure F.png]

POOL is a folder of pictures. For every number of rows a process of its own writes the manifest (path, label out of
1,000, time), opens it as `manifest:` does in a run, lays a Gaussian order on it, and takes the samples as they arrive,
decoded ahead, into a memory of 2,000 slots. Printed: resident megabytes after the imports, after the manifest was read,
after the order was laid, and over the stream; and the most that the process ever had.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]
CLASSES, SLOTS, POINTS = 1000, 2000, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[12_800, 128_000, 1_280_000])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--walk", type=float, default=1.0, help="share of the stream that is gone through")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--one", action="store_true", help="measure here (what each process does)")
    parser.add_argument("--write", type=Path, help="write the manifest only")
    chosen = parser.parse_args()
    if chosen.write:
        write_manifest(chosen.pool, chosen.rows[0], chosen.write)
        return
    if chosen.one:
        print(json.dumps(measure(chosen.pool, chosen.rows[0], chosen.size, chosen.walk)))
        return
    found = []
    for rows in chosen.rows:
        command = [sys.executable, __file__, str(chosen.pool), "--one", "--rows", str(rows)]
        command += ["--size", str(chosen.size), "--walk", str(chosen.walk)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    report(found)
    if chosen.figure:
        draw(found, chosen.figure)


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def peak() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def write_manifest(pool: Path, rows: int, path: Path) -> None:
    """A line a time: the list of rows itself must not be in the memory that is measured."""
    pictures = sorted(str(each) for each in pool.rglob("*") if each.suffix.lower() in (".jpg", ".jpeg"))
    draw = random.Random(0)
    with open(path, "w") as file:
        file.write("path,label,time\n")
        for row in range(rows):
            file.write(f"{pictures[draw.randrange(len(pictures))]},class {row % CLASSES},{row}\n")


def measure(pool: Path, rows: int, size: int, walk: float) -> dict[str, object]:
    from budgeted import streams
    from budgeted.runs import run  # noqa: F401  so that what a run imports is in the base

    with tempfile.TemporaryDirectory() as place:
        manifest = Path(place, "rows.csv")
        writer = [sys.executable, __file__, str(pool), "--rows", str(rows), "--write", str(manifest)]
        subprocess.run(writer, check=True)  # elsewhere: the names of the pool are not what is measured
        moments = {"imports": resident()}
        start = time.perf_counter()
        data = streams.load(f"manifest:{manifest}", size=size, on_demand=True)
        moments["manifest"] = resident()
        stream = streams.stream_of(data, "gaussian", 1)
        moments["order"] = resident()
        opened = time.perf_counter() - start
        count = max(POINTS, int(len(stream) * walk))
        kept: list[object] = [None] * SLOTS
        curve: list[tuple[int, float]] = []
        start = time.perf_counter()
        with streams.arriving(data, stream.indices[:count]) as samples:
            for position, sample in enumerate(samples):
                kept[position % SLOTS] = sample
                if (position + 1) % (count // POINTS) == 0:
                    curve.append((position + 1, resident()))
        return {
            "rows": rows,
            "samples": count,
            "seconds_to_open": opened,
            "samples_per_second": count / (time.perf_counter() - start),
            **moments,
            "curve": curve,
            "peak": peak(),
        }


def report(found: list[dict[str, object]]) -> None:
    columns = ("rows", "imports", "manifest", "order", "first", "last", "peak", "open s", "samples/s")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for each in found:
        curve = each["curve"]
        assert isinstance(curve, list)
        numbers = [each["imports"], each["manifest"], each["order"], curve[0][1], curve[-1][1], each["peak"]]
        cells = [f"{each['rows']:,}", *(f"{number:.0f}" for number in numbers)]
        cells += [f"{each['seconds_to_open']:.1f}", f"{each['samples_per_second']:.0f}"]
        print("| " + " | ".join(cells) + " |")
    if len(found) > 1:
        first, last = found[0], found[-1]
        more = int(str(last["rows"])) - int(str(first["rows"]))
        ends = [each["curve"][-1][1] for each in (first, last)]  # type: ignore[index]
        each = (ends[1] - ends[0]) * 1e6 / more
        print(f"\nbytes of resident memory for each row more, at the end of the stream: {each:.1f}")


def draw(found: list[dict[str, object]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for each in found:
        curve = each["curve"]
        assert isinstance(curve, list)
        axes.plot([at / curve[-1][0] for at, _ in curve], [size for _, size in curve], label=f"{each['rows']:,} rows")
    axes.set(xlabel="share of the stream that has arrived", ylabel="resident memory (MB)", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
