"""What one retrieval costs as the memory grows: drawing a batch, and keeping the books for the next.

For memories of 10^3 to 10^7 samples in use, this measures the median CPU time, on one thread, of

* `draw`: which 16 slots are replayed, forgetting and counting their use;
* `observe`: the class similarity learns from ready-made gradients at 232 weights of each of them;
* `store`: one sample arrives and another leaves;
* `folds`: the passes over the memory that fold the scale of all frequencies in and renew the index, spread
  over the draws between two of them.

Memories are in the state of long use: a stream is replayed with each reading at 4,096 slots until its
frequencies settle, and larger memories are filled with frequencies as they are distributed there. The last
reading draws by a pass over the memory every time, to show what is avoided.

    python benchmarks/retrieval_growth.py --json growth.json --plot growth.png
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from budgeted.replay import (
    Column,
    Effort,
    GreedyBalanced,
    Memory,
    Retrieval,
    SARSettings,
    SimilarityAware,
    Uniform,
    label_column,
)
from budgeted.runs.environment import environment

BATCH, WEIGHTS, SEED = 16, 232, 0
GREY = torch.zeros(1, dtype=torch.uint8)
EVERYWHERE = torch.ones(WEIGHTS, dtype=torch.bool)
READINGS = {
    "uniform": None,
    "SAR (a) all divided by |M|": SARSettings(normalisation="all"),
    "SAR (b) class term divided": SARSettings(normalisation="class"),
    "SAR (c) nothing divided": SARSettings(normalisation="none"),
    "SAR (b) by passes": SARSettings(normalisation="class"),
}


@dataclass(frozen=True)
class Row:
    """One reading at one size; microseconds of CPU time."""

    reading: str
    slots: int
    classes: int
    draw: float
    draw_95: float
    observe: float
    store: float
    folds: float

    @property
    def total(self) -> float:
        return self.draw + self.observe + self.store + self.folds


def make(reading: str, capacity: int, classes: int) -> tuple[Memory, Retrieval]:
    settings = READINGS[reading]
    effort = Effort(pass_below=10**9) if "passes" in reading else Effort()
    retrieval: Retrieval = Uniform()
    if settings is not None:
        retrieval = SimilarityAware(settings, classes, effort=effort)
    columns = (Column("pixels", (1,), torch.uint8), label_column(classes), *retrieval.columns)
    return Memory(columns, capacity), retrieval


def step(
    memory: Memory,
    retrieval: Retrieval,
    centres: torch.Tensor,
    generator: np.random.Generator,
    torch_generator: torch.Generator,
) -> tuple[int, int, int]:
    """One arrival, one draw, one observation: nanoseconds of each."""
    label = int(generator.integers(len(centres)))
    start = time.thread_time_ns()
    slot = GreedyBalanced().select(memory, label, generator)
    assert slot is not None
    memory.put(slot, GREY, label)
    stored = time.thread_time_ns()
    slots = retrieval.draw(memory, BATCH, generator)
    drawn = time.thread_time_ns()
    labels = torch.from_numpy(memory.labels[slots].astype(np.int64))
    gradients = centres[labels] + torch.randn(len(labels), WEIGHTS, generator=torch_generator)
    ready = time.thread_time_ns()
    retrieval.observe(gradients, EVERYWHERE, labels)
    return drawn - stored, time.thread_time_ns() - ready, stored - start


def settled(reading: str, classes: int) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
    """Frequencies after long use of a small memory, and the similarity learned."""
    memory, retrieval = make(reading, 4096, classes)
    assert isinstance(retrieval, SimilarityAware)
    memory.watch(retrieval)
    generator, torch_generator = np.random.default_rng(SEED), torch.Generator().manual_seed(SEED)
    centres = 0.3 * torch.randn(classes, WEIGHTS, generator=torch_generator)
    for _ in range(8000):
        step(memory, retrieval, centres, generator, torch_generator)
    assert retrieval.similarity is not None
    return retrieval.frequencies.of_samples(memory), retrieval.similarity.state()


def measure(
    reading: str, slots: int, classes: int, draws: int, use: tuple[np.ndarray, dict[str, torch.Tensor]] | None
) -> Row:
    generator, torch_generator = np.random.default_rng(SEED), torch.Generator().manual_seed(SEED)
    memory, retrieval = make(reading, slots, classes)
    columns = {}
    if use is not None and isinstance(retrieval, SimilarityAware) and retrieval.similarity is not None:
        frequencies = generator.choice(use[0], slots).astype(np.float32)
        columns["frequency"] = torch.from_numpy(frequencies)
        retrieval.similarity.load_state(use[1])
    memory.extend(GREY.expand(slots, 1), np.arange(slots) % classes, **columns)
    memory.watch(retrieval)
    centres = 0.3 * torch.randn(classes, WEIGHTS, generator=torch_generator)
    for _ in range(max(20, draws // 2)):
        step(memory, retrieval, centres, generator, torch_generator)
    times = [step(memory, retrieval, centres, generator, torch_generator) for _ in range(draws)]
    draw, observe, store = (np.array(column) / 1e3 for column in zip(*times, strict=True))
    folds = 0.0
    if isinstance(retrieval, SimilarityAware):
        between = math.log(2) * retrieval.settings.k * slots / BATCH
        folds = max(0.0, fold(memory, retrieval, generator) - float(np.median(draw))) / between
    return Row(
        reading,
        slots,
        classes,
        float(np.median(draw)),
        float(np.quantile(draw, 0.95)),
        float(np.median(observe)),
        float(np.median(store)),
        folds,
    )


def fold(memory: Memory, retrieval: SimilarityAware, generator: np.random.Generator) -> float:
    """Microseconds of one draw that has to fold the scale in and renew the index first."""
    start = time.thread_time_ns()
    retrieval.frequencies.fold(memory)
    retrieval.adopt(memory)
    retrieval.draw(memory, BATCH, generator)
    return (time.thread_time_ns() - start) / 1e3


def training_step() -> float | None:
    """Microseconds of one training step of a ResNet-32 on a batch of 16 images of 32 pixels."""
    if importlib.util.find_spec("budgeted.models") is None:
        return None
    from budgeted.models import build

    generator = torch.Generator().manual_seed(SEED)
    model = build("resnet32", classes=10)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), generator=generator)

    def once() -> float:
        start = time.thread_time_ns()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        return (time.thread_time_ns() - start) / 1e3

    return statistics.median([once() for _ in range(13)][3:])


def show(rows: list[Row], training: float | None, write: Callable[[str], None] = print) -> None:
    write(f"{'reading':<28}{'slots':>12}{'draw':>9}{'95 %':>9}{'observe':>9}{'store':>8}{'folds':>8}{'all':>9}")
    for row in rows:
        write(
            f"{row.reading:<28}{row.slots:>12,}{row.draw:>9.0f}{row.draw_95:>9.0f}{row.observe:>9.0f}"
            f"{row.store:>8.0f}{row.folds:>8.2f}{row.total:>9.0f}"
        )
    write("microseconds of CPU time on one thread")
    if training is not None:
        write(f"one ResNet-32 training step, batch {BATCH}: {training:,.0f}")


def plot(rows: list[Row], training: float | None, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for reading in dict.fromkeys(row.reading for row in rows):
        mine = [row for row in rows if row.reading == reading]
        style = "--" if "passes" in reading else "-"
        axes.loglog([r.slots for r in mine], [r.total for r in mine], style, marker="o", ms=4, label=reading)
    if training is not None:
        axes.axhline(training, color="black", lw=1, ls=":", label="ResNet-32 training step, batch 16")
    axes.set_xlabel("samples in the memory")
    axes.set_ylabel("CPU time of one retrieval, µs")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10**7, help="largest memory, in samples")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--draws", type=int, default=300, help="draws measured at each size")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--plot", type=Path, help="write a figure here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [10**power for power in range(3, 10) if 10**power <= arguments.largest]
    rows = []
    for reading, settings in READINGS.items():
        use = settled(reading, arguments.classes) if settings is not None else None
        for slots in sizes:
            # A pass over a large memory takes long and varies little: fewer of them will do.
            draws = max(10, min(arguments.draws, 10**7 // slots)) if "passes" in reading else arguments.draws
            rows.append(measure(reading, slots, arguments.classes, draws, use))
    training = training_step()
    show(rows, training)
    if arguments.json is not None:
        content = {"rows": [asdict(row) | {"total": row.total} for row in rows], "training_step": training}
        arguments.json.write_text(json.dumps({"machine": environment(1, "cpu"), **content}, indent=1) + "\n")
    if arguments.plot is not None:
        plot(rows, training, arguments.plot)


if __name__ == "__main__":
    main()
