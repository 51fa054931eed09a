"""Every freezing policy on the same short training run: accuracy, compute charged and executed, seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted import models, streams
from budgeted.audit import ExecutedOps
from budgeted.bench.drawing import pyplot, write_figure
from budgeted.budget import Ledger, total
from budgeted.freezing import (
    AdaptivePrefix,
    ConstantPrefix,
    FreezingPolicy,
    LayerFreezing,
    LinearPrefix,
    NeverFreeze,
    RandomPrefix,
)


@dataclass(frozen=True)
class PolicyRun:
    """What one policy's run came to."""

    policy: str
    accuracy: float
    paper: int
    real: int
    executed_over_charged: float
    """operations counted as executed over operations charged, on the steps that were audited"""
    seconds: float
    """CPU seconds of the training steps"""
    frozen_blocks: tuple[float, ...]
    """mean number of frozen blocks in each twentieth of the run"""


@dataclass(frozen=True)
class ComparisonSettings:
    """A short run on the embedded digits."""

    model: str = "resnet20"
    """a name from budgeted.models"""
    steps: int = 300
    """training steps of every run"""
    batch: int = 16
    """images in a batch"""
    learning_rate: float = 1e-3
    """of Adam"""
    audit_every: int = 50
    """steps between two that are counted independently, as executed"""
    seed: int = 0
    """of the model and of the batches"""


def policies(settings: ComparisonSettings, blocks: int) -> dict[str, Callable[[], FreezingPolicy]]:
    half = (blocks - 1) // 2
    return {
        "none": NeverFreeze,
        "constant": lambda: ConstantPrefix(half),
        "linear": lambda: LinearPrefix(2 * half, settings.steps),
        "random": lambda: RandomPrefix(2 * half, settings.seed),
        # averages that warm up within a run this short
        "adaptive": lambda: AdaptivePrefix(ema=0.05),
    }


def compare(settings: ComparisonSettings, report: Callable[[str, int], None]) -> list[PolicyRun]:
    """Train once per policy from the same start on the same batches; `report(policy, step)` after every step."""
    data = streams.load("digits")
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (data.info.mean, data.info.std))

    def ready(images: np.ndarray) -> Tensor:
        return (torch.from_numpy(images).float() / 255 - mean) / std

    train, test = ready(data.train_images[:]), ready(data.test_images[:])
    labels, truth = torch.from_numpy(data.train_labels), torch.from_numpy(data.test_labels)
    runs = []
    probe = _model(settings, data.info)
    blocks = len(LayerFreezing(probe, NeverFreeze(), (train[:2],)).chain)
    for name, make in policies(settings, blocks).items():
        runs.append(_train(name, make(), settings, _model(settings, data.info), train, labels, test, truth, report))
    return runs


def _model(settings: ComparisonSettings, info: streams.DatasetInfo) -> nn.Module:
    return models.build(settings.model, classes=info.classes, input_shape=info.input_shape, seed=settings.seed)


def _batches(settings: ComparisonSettings, count: int) -> Iterator[Tensor]:
    generator = np.random.default_rng(settings.seed)
    for _ in range(settings.steps):
        yield torch.from_numpy(generator.choice(count, settings.batch, replace=False))


def _train(
    name: str,
    policy: FreezingPolicy,
    settings: ComparisonSettings,
    model: nn.Module,
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    truth: Tensor,
    report: Callable[[str, int], None],
) -> PolicyRun:
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    ledger = Ledger()
    freezing = LayerFreezing(model, policy, (train[: settings.batch],), optimizer=optimizer, ledger=ledger)
    seconds, charged, executed = 0.0, 0, 0
    frozen: list[int] = []

    def step(batch: Tensor) -> None:
        optimizer.zero_grad()
        logits = model(train[batch])
        done = freezing.backward(F.cross_entropy(logits, labels[batch]), logits, labels[batch])
        frozen.append(len(done.frozen))
        optimizer.step()

    for number, batch in enumerate(_batches(settings, len(train))):
        if number % settings.audit_every == settings.audit_every - 1:
            before = ledger.spent
            with ExecutedOps() as counted:
                step(batch)
            executed += counted.total
            charged += (ledger.spent - before).real
        else:
            start = time.process_time()
            step(batch)
            seconds += time.process_time() - start
        report(name, number)
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test).argmax(1) == truth).float().mean())
    spent = total(ledger.spent_on.values())
    parts = np.array_split(np.array(frozen), 20)
    return PolicyRun(
        name,
        accuracy,
        spent.paper,
        spent.real,
        executed / charged if charged else float("nan"),
        seconds,
        tuple(float(part.mean()) for part in parts if len(part)),
    )


def write(runs: list[PolicyRun], settings: ComparisonSettings, folder: Path) -> Path:
    """Records as JSON and a figure beside it; answers with the figure's path."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"settings": asdict(settings), "runs": [asdict(run) for run in runs]}
    (folder / "freezing.json").write_text(json.dumps(record, indent=1) + "\n")
    figure = folder / "freezing.png"
    _draw(runs, figure)
    return figure


def _draw(runs: list[PolicyRun], path: Path) -> None:
    plt = pyplot()
    full = runs[0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    places = np.arange(len(runs))
    left.bar(places - 0.2, [100 * run.real / full.real for run in runs], 0.4, label="compute, by the ledger")
    left.bar(places + 0.2, [100 * run.seconds / full.seconds for run in runs], 0.4, label="CPU time", color="#e8a33d")
    for place, run in zip(places, runs, strict=True):
        top = 100 * max(run.real / full.real, run.seconds / full.seconds)
        left.annotate(f"{100 * run.accuracy:.1f} %", (place, top + 2), ha="center", fontsize=9)
    left.set_xticks(places, [run.policy for run in runs])
    left.set_ylabel("% of the run without freezing")
    left.set_ylim(0, 125)
    left.set_title("What a run costs (above the bars: test accuracy)")
    left.legend(loc="upper right", ncols=2, frameon=False)
    for run in runs:
        stretch = (np.arange(len(run.frozen_blocks)) + 0.5) / len(run.frozen_blocks)
        right.plot(100 * stretch, run.frozen_blocks, label=run.policy, linewidth=1.8)
    right.set_xlabel("% of the run")
    right.set_ylabel("frozen blocks (mean)")
    right.set_title("What is frozen, over time")
    right.set_ylim(-0.3, 1.3 * max(max(run.frozen_blocks) for run in runs))
    right.legend(loc="upper center", ncols=5, frameon=False, columnspacing=1, handlelength=1.2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    write_figure(figure, path, dpi=130)
    plt.close(figure)
