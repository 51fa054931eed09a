"""What adaptive freezing saves over a stream: by the ledger, by a count of what was executed, and by the clock.

Vanilla and aL learn the same stream of real CIFAR-10 side by side, sample by sample, on one thread, so that a change of
the machine's speed meets both alike. Every eleventh step of both is also run under the audit's counter, which shares no
code with the prices; those steps are left out of the time.

    python benchmarks/savings_over_stream.py --data FOLDER --out results/savings_over_stream
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from budgeted import models, streams
from budgeted.audit import ExecutedOnData
from budgeted.learner.learner import Learner
from budgeted.methods import METHODS
from budgeted.runs.environment import environment
from budgeted.runs.plan import facts_of

NAMES = ("vanilla", "al")
AUDIT_EVERY = 11  # no multiple of the refresh, so that refreshed steps are among them as often as among all


def learner(name: str, data: streams.Dataset, samples: int, model: str, seed: int) -> Learner:
    built = models.build(model, classes=1, input_shape=data.info.input_shape, seed=seed)
    return Learner(built, METHODS[name], facts_of(data.info, samples), slots=1270, iterations=1.0, seed=seed)


def run(options: argparse.Namespace) -> dict[str, Any]:
    data = streams.load("cifar10", options.data)
    stream = streams.stream_of(data, options.stream, options.seed, limit=options.limit)
    learners = [learner(name, data, len(stream), options.model, options.seed) for name in NAMES]
    charged = np.zeros((len(NAMES), len(stream)))
    seconds = np.zeros_like(charged)
    counted = np.zeros_like(charged)
    for position in range(len(stream)):
        index = stream[position]
        image = torch.from_numpy(np.ascontiguousarray(data.train_images[index]))
        label = int(data.train_labels[index])
        audited = position % AUDIT_EVERY == AUDIT_EVERY - 1
        for number, one in enumerate(learners):
            before, begin = one.ledger.spent.real, time.process_time()
            if audited:
                with ExecutedOnData() as executed:
                    one.learn(image, label)
                counted[number, position] = executed.total
            else:
                one.learn(image, label)
                seconds[number, position] = time.process_time() - begin
            charged[number, position] = one.ledger.spent.real - before
    places = np.arange(AUDIT_EVERY - 1, len(stream), AUDIT_EVERY)
    others = np.setdiff1d(np.arange(len(stream)), places)
    return {
        "settings": {key: getattr(options, key) for key in ("stream", "model", "limit", "seed")},
        "samples": [int(place) + 1 for place in places],
        "charged_saved": _saved(charged, np.arange(len(stream)), places),
        "counted_saved": _saved(counted, places, places),
        "charged_saved_of_audited": _saved(charged, places, places),
        "seconds_saved": _saved(seconds, others, places),
        "charged": charged.sum(1).tolist(),
        "seconds": seconds.sum(1).tolist(),
        "torch": torch.__version__,
    }


def _saved(values: np.ndarray[Any, Any], of: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> list[float]:
    """Share of Vanilla's total so far that aL did not spend, over the samples `of`, at each of `places`."""
    chosen = np.zeros_like(values)
    chosen[:, of] = values[:, of]
    sums = chosen.cumsum(1)[:, places]
    return [round(float(1 - al / max(vanilla, 1e-12)), 5) for vanilla, al in sums.T]


def draw(record: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8.5, 4), layout="constrained")
    for key, label, colour, style, width in (
        ("charged_saved", "ledger, all steps", "#1f5fa8", "-", 1.8),
        ("charged_saved_of_audited", "ledger, every eleventh step", "#9cc3ea", "-", 4.0),
        ("counted_saved", "executed, counted in the same steps", "#c9541c", "--", 1.4),
        ("seconds_saved", "CPU seconds, all other steps", "#3a9a5b", "-", 1.8),
    ):
        axes.plot(record["samples"], 100 * np.array(record[key]), style, label=label, color=colour, linewidth=width)
    axes.set_xlabel("samples of the stream")
    axes.set_ylabel("saved so far against Vanilla, %")
    axes.set_title("What adaptive freezing saves on CIFAR-10")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    parser.add_argument("--stream", default="gaussian")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument(
        "--limit", type=int, default=10_000, help="samples of the stream; as protocol cpu unless told otherwise"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/savings_over_stream"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = run(options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "record.json").write_text(json.dumps({"machine": environment(1, "cpu"), **record}) + "\n")
    draw(record, options.out / "saved.png")
    for key in ("charged_saved", "counted_saved", "charged_saved_of_audited", "seconds_saved"):
        print(f"{key.replace('_', ' ')}: {100 * record[key][-1]:.2f} %")


if __name__ == "__main__":
    main()
