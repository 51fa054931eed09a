"""A sweep as an array of a real SLURM cluster, while tasks of it are ended: does it come to the same bits?

The same small runs twice: one after the other in this process, and by the line that docs/experiments.md gives for an
array. Tasks whose runs are under way are cancelled (`scancel`), ended by a signal that nobody catches, and put back
into the queue (`scontrol requeue`); then the same line is submitted again. `sbatch` has to be there, and the folder
(--folder) on a path that all nodes share.

    python benchmarks/sweep_in_slurm.py --folder /shared/array
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from sweep_on_ray import RECIPE, found, sittings

from budgeted.bench import recipes
from budgeted.bench.sweep import Place, places
from budgeted.runs.run import start

ENDED = {
    "scancel": ["scancel"],
    "signal": ["scancel", "--signal", "USR1", "--full"],  # which nobody catches: gone at once, as by SIGKILL
    "requeue": ["scontrol", "requeue"],
}
"""ways to end a task; all but the last one need the line to be submitted again"""


def line(recipe: Path, out: Path, data: Path, tasks: int) -> list[str]:
    """As the documentation has it."""
    said = f"budgeted sweep {recipe}:recipe --out {out} --data {data} --part $SLURM_ARRAY_TASK_ID/{tasks}"
    return ["sbatch", "--parsable", f"--array=1-{tasks}", "--wrap", said]


def submitted(recipe: Path, folder: Path, tasks: int) -> str:
    # `budgeted` is that of this environment, as it is after its activation
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = line(recipe, folder / "array", folder / "data", tasks)
    answer = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, check=True, capture_output=True, text=True
    )
    print(f"job {answer.stdout.strip()}: {shlex.join(command)}", flush=True)
    return answer.stdout.strip()


def queued(job: str) -> list[str]:
    asked = ["squeue", "--noheader", "--jobs", job, "--format", "%i %T"]
    # a job that ended some time ago is not known any more
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.splitlines()


def half_done(place: Place) -> bool:
    return any(place.folder.glob("checkpoints/0*")) and not (place.folder / "summary.json").exists()


def end_task(job: str, runs: list[Place], tasks: int, by: str, spared: set[int]) -> int:
    """End the first task whose run has a checkpoint and no summary; answers with its number."""
    while True:
        for number, place in enumerate(runs):
            task = number % tasks + 1
            if task not in spared and half_done(place):
                # its answer may be an error when the task is gone before it has been told
                subprocess.run([*ENDED[by], f"{job}_{task}"], check=False)
                finished = sum((other.folder / "summary.json").exists() for other in runs)
                print(f"{by} of {job}_{task}, {place.folder.name} under way, {finished} runs finished", flush=True)
                return task
        if not queued(job):
            raise SystemExit("the array ended before a task could be ended: give it more --samples")
        time.sleep(0.05)


def wait_for(job: str) -> None:
    while queued(job):
        time.sleep(1)


def last_words(folder: Path, job: str, task: int) -> str:
    said = (folder / f"slurm-{job}_{task}.out").read_text().strip().splitlines()
    return " / ".join(said[-2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--model", default="cnn8")
    parser.add_argument("--method", default="vanilla")
    options = parser.parse_args()
    folder = options.folder.resolve()
    (folder / "data").mkdir(parents=True)
    recipe = folder / "small.py"
    values = {"method": options.method, "model": options.model, "samples": options.samples}
    recipe.write_text(RECIPE.format(**values, every=options.samples // 2, seeds=-(-options.runs // 2)))
    configs = recipes.recipe(f"{recipe}:recipe").runs

    runs, ended = places(configs, folder / "array"), dict[int, str]()
    job = submitted(recipe, folder, options.tasks)
    for by in ENDED:
        ended[end_task(job, runs, options.tasks, by, set(ended))] = by
    wait_for(job)
    for task, by in ended.items():
        print(f"  last words after {by}: {last_words(folder, job, task)}", flush=True)
    print(f"the array has ended: {len(found(folder / 'array'))} of {len(runs)} runs are finished", flush=True)
    again = submitted(recipe, folder, options.tasks)
    wait_for(again)

    for place in places(configs, folder / "local"):
        start(place.config, place.folder)
    expected, came_to = found(folder / "local"), found(folder / "array")
    same, went_on = came_to == expected, sum(count > 1 for count in sittings(folder / "array"))
    print(f"{len(came_to)} runs are finished; {went_on} went on; same bits as in this process: {same}", flush=True)
    return 0 if same and len(expected) == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
