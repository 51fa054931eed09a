"""How unevenly does similarity-aware retrieval draw? Read off the last checkpoint of finished runs.

For every run: the class similarity S (mean of its diagonal, mean off it), the chance of the most and of the least
preferred class over that of uniform retrieval, the spread of chances inside the classes, and the size of a uniformly
drawn memory with the same chance of a repeat, as a share of the slots.

    python benchmarks/retrieved_shares.py RUN...  --json results/readings-sar/shares.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from budgeted import streams
from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.replay import Column, Memory, SimilarityAware, label_column
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import CONFIG, read_config


def retrieval_of(run: Path) -> tuple[RunConfig, Memory, SimilarityAware]:
    """The memory and the retrieval at the end of a run; the model and the data are not needed."""
    config = RunConfig.from_mapping(read_config(run / CONFIG), str(run))
    if config.retrieval not in (None, "sar") or config.method not in ("sar", "al-sar"):
        raise BudgetedError(f"{run} does not retrieve by similarity: give runs of sar or al-sar")
    info = streams.info(config.dataset)
    tensors, _ = state.read(max((run / "checkpoints").iterdir()))

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    coordinates = tensors.get("retrieval.similarity.gradients", torch.zeros(0, 0)).shape[1]
    retrieval = SimilarityAware(config.build_settings(info.flips).retrieval, info.classes, coordinates)
    columns = (Column("sample", info.input_shape, torch.uint8), label_column(info.classes), *retrieval.columns)
    memory = Memory(columns, int(tensors["memory.capacity"]))
    memory.load_state(part("memory."))
    memory.watch(retrieval)
    retrieval.load_state(part("retrieval."))
    return config, memory, retrieval


def shares(run: Path) -> dict[str, object]:
    config, memory, retrieval = retrieval_of(run)
    chances = retrieval.probabilities(memory)
    of_class = np.bincount(memory.labels, chances) * len(memory) / memory.counts
    inside = [chances[memory.labels == label] for label in np.unique(memory.labels)]
    matrix = retrieval.similarity.matrix if retrieval.similarity is not None else np.zeros((1, 1))
    apart = (matrix.sum() - matrix.trace()) / max(1, matrix.size - len(matrix))
    return {
        "method": config.method,
        "settings": dict(config.settings),
        "seed": config.seed,
        "limit": config.limit,
        "slots": len(memory),
        "similarity_diagonal": round(float(matrix.diagonal().mean()), 4),
        "similarity_apart": round(float(apart), 4),
        "least_class": round(float(of_class.min()), 4),
        "most_class": round(float(of_class.max()), 4),
        "spread_inside": round(float(np.mean([own.std() / own.mean() for own in inside])), 4),
        "even_memory": round(float(1 / np.square(chances).sum() / len(memory)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs, with their checkpoints")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    options = parser.parse_args()
    rows = [shares(run) for run in options.runs]
    print("S own  S apart  least  most  spread inside  even memory  run")
    for row in rows:
        how = " ".join(f"{key}={value}" for key, value in row["settings"].items())  # type: ignore[attr-defined]
        print(
            f"{row['similarity_diagonal']:5} {row['similarity_apart']:8} {row['least_class']:6} {row['most_class']:5} "
            f"{row['spread_inside']:14} {row['even_memory']:12}  {row['method']} {how} seed {row['seed']}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
