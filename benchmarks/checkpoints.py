"""Checkpoints of a large memory: seconds, bytes written and peak resident memory.

    python benchmarks/checkpoints.py [--gigabytes 1 6] [--side 224] [--changed 0.02] [--checkpoints 4]
        [--record results/timing/checkpoints.json --as after]

For every size a process of its own: a learner (ResNet-18, ER) whose memory is full of random pictures, a first
checkpoint, where nothing is on disk yet, and then some after each of which a share of the slots was replaced. Bytes are
those that the process handed to the system, resident memory is the most during the checkpoint above what there was
before it. Beside it a training step is timed: `share` is what the slowest of the later checkpoints takes beside the
steps since the one before, at one step per sample and every sample stored, so that there cannot be fewer; by the clock,
and of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from budgeted.learner import DataFacts, Learner
from budgeted.models import build
from budgeted.runs.folder import RunFolder

CLASSES, BATCH, STEPS = 10, 16, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 6])
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--changed", type=float, default=0.02, help="share of the slots, between two checkpoints")
    parser.add_argument("--checkpoints", type=int, default=4, help="after the first")
    parser.add_argument("--place", type=Path, help="folder for the run; a temporary one if not given")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--as", dest="name", default="after")
    parser.add_argument("--one", action="store_true", help="measure here (what each process does)")
    chosen = parser.parse_args()
    if chosen.one:
        with tempfile.TemporaryDirectory(dir=chosen.place) as place:
            found = measure(chosen.gigabytes[0], chosen.side, chosen.changed, chosen.checkpoints, Path(place))
        print(json.dumps(found))
        return
    found = []
    for size in chosen.gigabytes:
        command = [sys.executable, __file__, "--one", *sys.argv[1:], "--gigabytes", str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    report(found)
    if chosen.record:
        before = json.loads(chosen.record.read_text()) if chosen.record.exists() else {}
        chosen.record.write_text(json.dumps({**before, chosen.name: found}, indent=1) + "\n")


def resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def handed_over() -> int:
    """Bytes that this process wrote so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["wchar"])


def measure(gigabytes: float, side: int, changed: float, checkpoints: int, place: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    slots = int(gigabytes * 1e9 / (3 * side * side))
    facts = DataFacts((3, side, side), (0.5,) * 3, (0.25,) * 3, classes=CLASSES, samples=10 * slots)
    model = build("resnet18", classes=CLASSES, input_shape=(3, side, side))
    learner = Learner(model, "er", facts, slots=slots, iterations=1.0)
    rng = np.random.default_rng(0)

    def pictures(count: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8))

    steps: list[tuple[float, float]] = []
    while learner.steps < STEPS:  # the optimizer's moments are there then, as in a run
        before, clock, cpu = learner.steps, time.perf_counter(), time.process_time()
        learner.learn(pictures(1)[0], learner.arrived % CLASSES)
        if made := learner.steps - before:  # several at once, where some samples wait for a batch
            steps.append(((time.perf_counter() - clock) / made, (time.process_time() - cpu) / made))
    step_seconds, step_cpu_seconds = (statistics.median(column) for column in zip(*steps, strict=True))
    while len(learner.memory) < slots:
        count = min(256, slots - len(learner.memory))
        learner.memory.extend(pictures(count), rng.integers(0, len(learner.class_labels), count))
    folder = RunFolder(place / "run")
    folder.path.mkdir()
    written = []
    for number in range(1 + checkpoints):
        replaced = rng.choice(slots, int(changed * slots), replace=False) if number else ()
        for slot in replaced:
            learner.memory.put(int(slot), pictures(1)[0], 0)
        learner.arrived += 1
        written.append(one(folder, learner))
    later, samples = written[1:], int(changed * slots)
    return {
        "gigabytes": gigabytes,
        "side": side,
        "slots": slots,
        "changed_slots": samples,
        "step_seconds": step_seconds,
        "step_cpu_seconds": step_cpu_seconds,
        "resident_bytes": resident("VmRSS"),
        "first": written[0],
        "later": later,
        "share": max(each["seconds"] for each in later) / (samples * step_seconds),
        "cpu_share": max(each["cpu_seconds"] for each in later) / (samples * step_cpu_seconds),
        "torch": torch.__version__,
    }


def one(folder: RunFolder, learner: Learner) -> dict[str, float]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, bytes_before = resident("VmRSS"), handed_over()
    clock, cpu = time.perf_counter(), time.process_time()
    folder.write_checkpoint(learner, {})
    return {
        "seconds": time.perf_counter() - clock,
        "cpu_seconds": time.process_time() - cpu,
        "bytes": handed_over() - bytes_before,
        "peak_bytes": resident("VmHWM") - before,
    }


def report(found: list[dict[str, Any]]) -> None:
    columns = ("memory", "checkpoint", "slots written", "seconds", "CPU s", "MB written", "peak MB", "share of a run")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for each in found:
        later = sorted(each["later"], key=lambda one: float(one["seconds"]))[-1]
        for name, slots, one_of, share in (
            ("first", each["slots"], each["first"], ""),
            (
                "later, slowest",
                each["changed_slots"],
                later,
                f"{100 * each['share']:.2f} %, CPU {100 * each['cpu_share']:.2f} %",
            ),
        ):
            numbers = f"{one_of['seconds']:.2f} | {one_of['cpu_seconds']:.2f} | {one_of['bytes'] / 1e6:.1f}"
            print(
                f"| {each['gigabytes']:g} GB, {each['side']} px | {name} | {slots:,} | {numbers} | "
                f"{one_of['peak_bytes'] / 1e6:.0f} | {share} |"
            )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
