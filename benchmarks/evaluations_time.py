"""What many evaluations cost a run: the wall clock with every hundredth sample evaluated, over that with five in all.

    python benchmarks/evaluations_time.py --data DATA [--samples 50000] [--out runs/evaluations] [--precision bfloat16]
        [--model resnet32] [--eval-samples 10000] [--figure FILE.png] [--json FILE.json]

Vanilla on CIFAR-10 (Gaussian, one step a sample, 7,998,016 bytes) twice: evaluated every 100 samples, as in the paper,
and five times. Both evaluate in a process beside the run (`--eval-beside`), on all test images of the classes seen. A
run that was cut off goes on, one that is finished stays. Compared is the wall clock of the whole command's work (data,
plan, stream, checkpoints, the last evaluation), over all sittings, with what was done again after a cut. At --samples
2500 the evaluations for each sample and the images of each are those of the full size, but a checkpoint, which waits
for answers, comes with nearly every second evaluation and not with every tenth. On two cores that nobody else
uses it is to be at most 1.25.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from budgeted.runs.config import RunConfig
from budgeted.runs.environment import environment
from budgeted.runs.folder import CONFIG, RECORDS, SUMMARY
from budgeted.runs.run import Progress, resume, start

FEW = 5
EVERY = 100
SECONDS = 10.0
"""between two points of a curve"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--out", type=Path, default=Path("runs/evaluations"))
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--eval-samples", type=int, help="test images of an evaluation; all if not given")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    chosen = parser.parse_args()
    few, many = (
        one(
            RunConfig(
                method="vanilla", dataset="cifar10", data=chosen.data, model=chosen.model, memory="7998016B",
                limit=chosen.samples, iterations=1.0, eval_every=every, eval_beside=True,
                eval_precision=chosen.precision, eval_samples=chosen.eval_samples,
            ),
            chosen.out / f"every-{every}-of-{chosen.samples}-{chosen.model}-{chosen.precision}-{chosen.eval_samples}",
        )
        for every in (chosen.samples // FEW, EVERY)
    )  # fmt: skip
    columns = ("evaluations", "wall s", "training s", "evaluation CPU s", "A_AUC %")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for found in (few, many):
        cells = (
            found["evaluations"],
            *(f"{found[key]:.0f}" for key in ("wall", "train", "eval")),
            f"{found['auc']:.2f}",
        )
        print(f"| {' | '.join(map(str, cells))} |")
    ratio = many["wall"] / few["wall"]
    print(f"\nwall clock with {many['evaluations']} over {few['evaluations']} evaluations: {ratio:.3f}")
    if chosen.figure:
        draw(few, many, chosen.figure)
    if chosen.json:
        record = {"machine": environment(1, "cpu"), "ratio": ratio, "few": few, "many": many}
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


def one(config: RunConfig, folder: Path) -> dict[str, Any]:
    """The run, finished, and the time that it took over all sittings."""
    beside = folder.parent / f"{folder.name}.seconds.json"
    folder.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(beside.read_text()) if beside.exists() else {"wall": 0.0, "curve": []}
    if (folder / SUMMARY).exists():
        summary = resume(folder)
    else:
        before, began, told = known["wall"], time.perf_counter(), 0.0

        def report(progress: Progress) -> None:
            nonlocal told
            now = time.perf_counter() - began
            if now - told >= SECONDS or progress.samples == progress.of_samples:
                told = now
                known["curve"].append((progress.samples, before + now))
                keep(now)

        def keep(now: float) -> None:
            known["wall"] = before + now
            beside.write_text(json.dumps(known))

        summary = resume(folder, report) if (folder / CONFIG).exists() else start(config, folder, report)
        keep(time.perf_counter() - began)
    return {
        "evaluations": len((folder / RECORDS).read_text().splitlines()),
        **known,
        "train": summary["train_seconds"],
        "eval": summary["eval_seconds"],
        "auc": 100 * summary["a_auc"],
    }


def draw(few: dict[str, Any], many: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for found, colour, above in ((few, "#0072b2", -1), (many, "#d55e00", 1)):
        samples, seconds = zip(*found["curve"], strict=True)
        axes.plot(samples, seconds, color=colour)
        middle = len(samples) // 2
        axes.annotate(
            f"{found['evaluations']} evaluations: {found['wall'] / 60:.1f} min", (samples[middle], seconds[middle]),
            xytext=(-6 * above, 10 * above), textcoords="offset points", color=colour,
            ha="right" if above > 0 else "left", va="bottom" if above > 0 else "top",
        )  # fmt: skip
    axes.set(xlabel="samples that have arrived", ylabel="wall-clock seconds", xlim=(0, None), ylim=(0, None))
    axes.set_title("Vanilla on CIFAR-10, Gaussian: evaluated beside the run, two cores", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
