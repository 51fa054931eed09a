"""Does time fall with the ledger? Seconds saved against compute saved, for every prefix of frozen blocks.

One thread, CPU time, channels_last, fused Adam. The prefixes take turns in an order drawn anew in every round, so that
a change of the machine's speed meets all alike; the median over rounds counts. A turn is three steps, because adaptive
freezing comes in threes: every fourth step is a whole one. With `--steps 1` the prefix changes after every step, and a
short step meets caches and memory as a longer one left them. A prefix that saves at least 10 % of the step's compute
must save at least 0.95 of that share in time.

    python benchmarks/freezing_time.py --model resnet32
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from prefix_timing import Chosen, in_turns

from budgeted import models
from budgeted.freezing import FrozenStep, LayerFreezing
from budgeted.network.fused_step import FusedStep
from budgeted.runs.environment import environment


def measure(model_name: str, batch: int, rounds: int, seed: int, steps: int) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    model = models.build(model_name, classes=10, seed=seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, 32, 32, generator=generator).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    update = FusedStep(optimizer)  # as the learner steps
    freezing = LayerFreezing(model, Chosen(), (images,), optimizer=optimizer)

    def step() -> FrozenStep:
        optimizer.zero_grad()
        done = freezing.backward(F.cross_entropy(model(images), labels))
        update()
        return done

    rows = in_turns(step, range(len(freezing.chain)), rounds, seed, steps)
    for row in rows:
        saved = row["compute_saved"]
        row["ratio"] = row["time_saved"] / saved if saved > 0 else float("nan")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet32", help="a name from budgeted.models")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=70, help="turns of every prefix")
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn, one after another")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    options = parser.parse_args()
    rows = measure(options.model, options.batch, options.rounds, options.seed, options.steps)
    print(f"{options.model}, batch {options.batch}, one thread, median of {options.rounds} turns of {options.steps}")
    print("frozen      ms   compute saved   time saved   ratio")
    for row in rows:
        print(
            f"{row['frozen']:6d} {row['milliseconds']:7.2f} {row['compute_saved']:15.3f} "
            f"{row['time_saved']:12.3f} {row['ratio']:7.3f}"
        )
    judged = [row["ratio"] for row in rows if row["compute_saved"] >= 0.1]
    print(f"smallest ratio where at least 10 % is saved: {min(judged):.3f}")
    if options.json:
        settings = vars(options) | {"json": None}
        record = {"machine": environment(1, "cpu"), "settings": settings, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
