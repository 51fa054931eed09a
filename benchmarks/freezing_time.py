"""Does time fall with the ledger? Seconds saved against compute saved, for every prefix of frozen blocks.

One thread, CPU time, channels_last, fused Adam. The prefixes take turns in an order drawn anew in every round, so that
a change of the machine's speed meets all alike; the median over rounds counts. A prefix that saves at least 10 % of
the step's compute must save at least 0.95 of that share in time.

    python benchmarks/freezing_time.py --model resnet32 --rounds 200
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from budgeted import models
from budgeted.budget import total
from budgeted.freezing import LayerFreezing, NeverFreeze, StepView
from budgeted.learner.fused_step import FusedStep


class Chosen(NeverFreeze):
    """The benchmark says how many blocks rest."""

    n = 0

    def decide(self, view: StepView) -> frozenset[int]:
        return frozenset(range(type(self).n))


def measure(model_name: str, batch: int, rounds: int, seed: int) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    model = models.build(model_name, classes=10, seed=seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, 32, 32, generator=generator).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    update = FusedStep(optimizer)  # as the learner steps
    freezing = LayerFreezing(model, Chosen(), (images,), optimizer=optimizer)
    prefixes = list(range(len(freezing.chain)))
    seconds: dict[int, list[float]] = {n: [] for n in prefixes}
    costs: dict[int, int] = {}
    order = np.random.default_rng(seed)
    for round_number in range(rounds + 2):
        for n in order.permutation(prefixes):
            Chosen.n = int(n)
            start = time.process_time()
            optimizer.zero_grad()
            step = freezing.backward(F.cross_entropy(model(images), labels))
            update()
            elapsed = time.process_time() - start
            if round_number >= 2:  # the first rounds trace, price and warm the caches
                seconds[int(n)].append(elapsed)
            costs[int(n)] = total(step.costs.values()).real
    full_time = statistics.median(seconds[0])
    rows = []
    for n in prefixes:
        compute_saved = 1 - costs[n] / costs[0]
        time_saved = 1 - statistics.median(seconds[n]) / full_time
        rows.append(
            {
                "frozen": n,
                "milliseconds": 1e3 * statistics.median(seconds[n]),
                "compute_saved": compute_saved,
                "time_saved": time_saved,
                "ratio": time_saved / compute_saved if compute_saved > 0 else float("nan"),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet32", help="a name from budgeted.models")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=200, help="times that every prefix is measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    options = parser.parse_args()
    rows = measure(options.model, options.batch, options.rounds, options.seed)
    print(f"{options.model}, batch {options.batch}, one thread, median of {options.rounds}")
    print("frozen      ms   compute saved   time saved   ratio")
    for row in rows:
        print(
            f"{row['frozen']:6d} {row['milliseconds']:7.2f} {row['compute_saved']:15.3f} "
            f"{row['time_saved']:12.3f} {row['ratio']:7.3f}"
        )
    judged = [row["ratio"] for row in rows if row["compute_saved"] >= 0.1]
    print(f"smallest ratio where at least 10 % is saved: {min(judged):.3f}")
    if options.json:
        options.json.write_text(json.dumps({"settings": vars(options) | {"json": None}, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
