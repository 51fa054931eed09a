"""How long a run waits for its data: the share of the training loop in which the next sample or batch is not there yet.

    python benchmarks/waiting.py POOL [--samples 200] [--large 24] [--threads 0 1] [--methods er cram] [--figure F.png]

POOL is a folder of pictures (Tiny-ImageNet's training folder, say). Two folders are made of it: pictures of 32x32, and
JPEGs of 500x375 as ImageNet's, which a run resizes to 224x224. One step a sample and batch 16: ResNet-32 on the small
ones, ResNet-18 on the large. ER trains on raw samples, eight steps on each stream batch; CRAM replays JPEGs, and has a
batch for every sample. With 0 threads nothing is made ahead, neither samples nor batches.

Printed for each: seconds in `learn`; seconds waited for samples; seconds in which the loop makes a batch itself, or
waits for one (drawn, decoded, varied); the share of both; and whether the weights at the end are the same bits.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from budgeted.learner import Learner  # noqa: E402
from budgeted.learner.meanwhile import Meanwhile  # noqa: E402
from budgeted.runs.config import RunConfig  # noqa: E402
from budgeted.runs.run import start  # noqa: E402
from budgeted.streams import own  # noqa: E402

CLASSES = 10
LIMIT = 5.0
batches = {"seconds": 0.0}
"""in which the loop has made a batch itself, or waited for one"""


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*given)
        finally:
            if threading.current_thread() is threading.main_thread():
                batches["seconds"] += time.perf_counter() - start

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--samples", type=int, default=200, help="of 32 pixels")
    parser.add_argument("--large", type=int, default=24, help="samples of 224 pixels")
    parser.add_argument("--threads", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--methods", nargs="+", default=["er", "cram"])
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    own.HELD = 0  # however few: decoded when they arrive
    Learner.draw, Meanwhile.wait = timed(Learner.draw), timed(Meanwhile.wait)  # type: ignore[method-assign]
    pool = sorted(path for path in chosen.pool.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    print(
        "| pictures | model | method | threads | samples | learn s | samples s | batches s | share | same bits |\n"
        + "|---" * 10
        + "|"
    )
    shares: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, sides, size, model, samples in (
            ("32x32 JPEG", (32, 32), 32, "resnet32", chosen.samples),
            ("500x375 JPEG", (500, 375), 224, "resnet18", chosen.large),
        ):
            folder = Path(place, name)
            fill(folder, pool, sides, samples)
            for method in chosen.methods:
                ends: list[str] = []
                for threads in chosen.threads:
                    config = RunConfig(
                        method=method, dataset=f"folder:{folder}", model=model, size=size, slots=50, iterations=1.0,
                        eval_every=10**6, eval_samples=CLASSES, checkpoint_every=10**6, decode_threads=threads,
                    )  # fmt: skip
                    batches["seconds"] = 0.0
                    summary = start(config, Path(place, f"run-{name}-{method}-{threads}"))
                    ends.append(summary["weights_sha256"])
                    learn, waited = summary["train_seconds"], summary["wait_seconds"]
                    share = 100 * (waited + batches["seconds"]) / (learn + waited)
                    shares[f"{name}, {model}, {method}\n{threads} thread{'s' * (threads != 1)}"] = share
                    cells = (
                        name,
                        model,
                        method,
                        threads,
                        summary["samples"],
                        f"{learn:.1f}",
                        f"{waited:.3f}",
                        f"{batches['seconds']:.3f}",
                        f"{share:.2f} %",
                        "yes" if ends[-1] == ends[0] else "NO",
                    )
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if chosen.figure:
        draw(shares, chosen.figure)


def draw(shares: dict[str, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 0.45 * len(shares) + 1), layout="constrained")
    bars = axes.barh(list(shares), list(shares.values()), color="#0072b2")
    axes.bar_label(bars, fmt="%.2f %%", padding=3)
    axes.axvline(LIMIT, color="#d55e00")
    axes.text(LIMIT, -0.4, "limit ", ha="right", color="#d55e00")
    axes.set(xlabel="share of the training loop that waits for data, %", xlim=(0, 1.15 * max(LIMIT, *shares.values())))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def fill(folder: Path, pool: list[Path], sides: tuple[int, int], samples: int) -> None:
    draw = random.Random(0)
    for number in range(samples + samples // 4):
        path = folder / f"class {number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(draw.choice(pool)) as image:
            image.convert("RGB").resize(sides, Image.Resampling.BICUBIC).save(path, quality=92)


if __name__ == "__main__":
    main()
