"""Does time fall with the price on other architectures than ResNets? The ten of `tests/plugin/architectures.py`.

One thread, CPU time, a batch 16 times that of the tests (whose steps are so short that Python is most of them). Nothing
frozen, half of the blocks and all but the head take turns in an order drawn anew in every round; the median counts.

    python benchmarks/architectures_time.py --rounds 40 --json results/timing/architectures.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from prefix_timing import Chosen, in_turns
from torch import Tensor

from budgeted.freezing import FrozenStep
from budgeted.network.fused_step import FusedStep
from budgeted.plugin import AdaptiveFreezing
from budgeted.runs.environment import environment

sys.path.insert(0, str(Path(__file__).parents[1]))  # the architectures are the tests'
from tests.nets import seeded
from tests.plugin.architectures import TEN_ARCHITECTURES, Architecture


def larger(tensor: Tensor, times: int) -> Tensor:
    return tensor.repeat(times, *[1] * (tensor.dim() - 1))


def measure(case: Architecture, times: int, rounds: int, seed: int) -> list[dict[str, float]]:
    model = seeded(case.build)
    inputs = tuple(larger(tensor, times) for tensor in case.inputs)
    keywords = {name: larger(value, times) for name, value in case.keywords.items()}
    targets = larger(case.targets, times)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-4, fused=True)
    update = FusedStep(optimizer)
    freezing = AdaptiveFreezing(model, policy=Chosen(), optimizer=optimizer, example=inputs, keywords=keywords)
    blocks = len(freezing.chain)

    def step() -> FrozenStep:
        optimizer.zero_grad()
        done = freezing.backward(case.loss(model(*inputs, **keywords), targets))
        update()
        return done

    rows = in_turns(step, sorted({0, blocks // 2, blocks - 1}), rounds, seed)
    freezing.remove()
    return [{"blocks": blocks, **row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=16, help="how many times the tests' batch")
    parser.add_argument("--rounds", type=int, default=40, help="times that every prefix is measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    print(f"{'architecture':<30} frozen       ms   compute saved   time saved   ratio")
    for name, case in TEN_ARCHITECTURES.items():
        found[name] = measure(case, options.times, options.rounds, options.seed)
        for row in found[name]:
            ratio = f"{row['time_saved'] / row['compute_saved']:7.3f}" if row["compute_saved"] >= 0.1 else "      -"
            print(
                f"{name:<30} {row['frozen']:2.0f} of {row['blocks']:2.0f} {row['milliseconds']:8.2f} "
                f"{row['compute_saved']:15.3f} {row['time_saved']:12.3f} {ratio}"
            )
    if options.json:
        settings = vars(options) | {"json": None}
        record = {"machine": environment(1, "cpu"), "settings": settings, "rows": found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
