"""What adaptive freezing does over a stream: more as training goes on, less when new classes arrive.

The embedded digits arrive in two tasks of five classes each, one after the other; every sample is kept, and batches are
drawn uniformly from what has arrived. Writes a record and a figure. With `--tasks 5 --iterations 1` the tasks are
short, and what is frozen recovers within most of them, but falls from task to task.

    python benchmarks/freezing_over_stream.py --out results/freezing_over_stream
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from budgeted import models, streams
from budgeted.freezing import AdaptivePrefix, LayerFreezing


def run(model_name: str, tasks: int, iterations: int, ema: float, head_fisher: bool, seed: int) -> dict[str, object]:
    torch.set_num_threads(1)
    data = streams.load("digits")
    stream = streams.stream_of(data, "disjoint", seed, tasks=tasks)
    mean, std = data.info.mean[0], data.info.std[0]
    images = (torch.from_numpy(data.train_images).float() / 255 - mean) / std
    labels = torch.from_numpy(data.train_labels)
    model = models.build(model_name, classes=10, input_shape=data.info.input_shape, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    policy = AdaptivePrefix(ema=ema, head_fisher=head_fisher)
    freezing = LayerFreezing(model, policy, (images[:16],), optimizer=optimizer)
    generator = np.random.default_rng(seed)
    arrived: list[int] = []
    frozen: list[float] = []
    blocks: list[int] = []
    for sample in range(len(stream)):
        arrived.append(stream[sample])
        shares, depths = [], []
        for _ in range(iterations):
            batch = torch.as_tensor(generator.choice(arrived, min(16, len(arrived)), replace=False))
            if len(batch) < 2:
                continue
            optimizer.zero_grad()
            logits = model(images[batch])
            done = freezing.backward(F.cross_entropy(logits, labels[batch]), logits, labels[batch])
            optimizer.step()
            shares.append(done.frozen_share)
            depths.append(len(done.frozen))
        frozen.append(float(np.mean(shares)) if shares else 0.0)
        blocks.append(int(np.max(depths)) if depths else 0)
    return {
        "settings": {
            "model": model_name, "tasks": tasks, "iterations": iterations,
            "ema": ema, "head_fisher": head_fisher, "seed": seed,
        },
        "boundaries": [int(boundary) for boundary in stream.boundaries()],
        "frozen_share": [round(share, 4) for share in frozen],
        "most_blocks": blocks,
    }  # fmt: skip


def draw(record: dict[str, object], path: Path, window: int = 40) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    share = np.array(record["frozen_share"])
    smooth = np.convolve(share, np.ones(window) / window, mode="valid")
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    axes.plot(
        np.arange(window - 1, len(share)), 100 * smooth, color="#1f5fa8", label=f"mean of the last {window} samples"
    )
    axes.axhline(75, color="#888888", linewidth=0.8, label="ceiling: every fourth step trains all blocks")
    for boundary in record["boundaries"]:  # type: ignore[attr-defined]
        axes.axvline(boundary, color="#c0392b", linestyle=":", linewidth=1.2)
    axes.set_xlabel("samples of the stream (dotted: new classes arrive)")
    axes.set_ylabel("backward not computed, %")
    axes.set_title("Adaptive freezing over a stream of digits")
    axes.set_ylim(0, 90)
    axes.legend(loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--tasks", type=int, default=2, help="groups of classes that arrive one after the other")
    parser.add_argument("--iterations", type=int, default=2, help="training steps per sample")
    parser.add_argument("--ema", type=float, default=0.01)
    parser.add_argument("--head-fisher", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/freezing_over_stream"))
    options = parser.parse_args()
    record = run(options.model, options.tasks, options.iterations, options.ema, options.head_fisher, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "record.json").write_text(json.dumps(record) + "\n")
    draw(record, options.out / "frozen_share.png")
    share = np.array(record["frozen_share"])
    ends = [0, *record["boundaries"], len(share)]  # type: ignore[misc]
    print("backward not computed, %, by eighths of each task:")
    for task, (start, end) in enumerate(itertools.pairwise(ends)):
        eighths = " ".join(f"{100 * part.mean():3.0f}" for part in np.array_split(share[start:end], 8))
        print(f"  task {task + 1}: {eighths}")


if __name__ == "__main__":
    main()
