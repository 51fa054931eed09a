"""What shapes that were not met before cost: a text loop with 32 lengths, and one price by itself. The first steps of a
learner, whose batch and head grow, are measured by `first_steps.py`.

1. A small BERT is trained on batches whose lengths differ, in the user's own loop: plainly, and under
   `AdaptiveFreezing` with a policy that freezes nothing, so that nothing is saved and all that is left is what the
   plug-in itself takes. Both loops take turns step by step, so that a change of the machine's speed meets both alike.
   What the first trace and those of the second and third length take is in the sum, and printed by itself.
2. What a price at a new shape takes, by itself.

    python benchmarks/new_shapes.py --json results/timing/new_shapes.json
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from budgeted import AdaptiveFreezing
from budgeted.freezing import StepPrices
from budgeted.runs.environment import environment

LENGTHS = tuple(range(16, 48))
BATCH, WORDS = 16, 1000
TARGETS = {"text loop": 1.03, "new shape, ms": 1.0}


def bert(layers: int, width: int) -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=4 * width,
        vocab_size=WORDS, num_labels=4,
    )  # fmt: skip
    return BertForSequenceClassification(config).train()


def text_loop(layers: int, width: int, rounds: int) -> dict[str, Any]:
    """Every length comes `rounds` times, in an order drawn anew each time."""
    plain = bert(layers, width)
    frozen = copy.deepcopy(plain)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-4) for net in (plain, frozen)]
    drawing = random.Random(3)
    order = [length for _ in range(rounds) for length in drawing.sample(LENGTHS, len(LENGTHS))]
    freezing = AdaptiveFreezing(frozen, optimizers[1], policy="none")
    times: tuple[list[float], list[float]] = ([], [])

    def step(which: int, words: torch.Tensor, labels: torch.Tensor) -> None:
        begin = time.process_time()
        optimizers[which].zero_grad()
        loss = nn.functional.cross_entropy((frozen if which else plain)(input_ids=words).logits, labels)
        if which:
            freezing.backward(loss)
        else:
            loss.backward()
        optimizers[which].step()
        times[which].append(time.process_time() - begin)

    for number, length in enumerate(order):
        words, labels = torch.randint(0, WORDS, (BATCH, length)), torch.randint(0, 4, (BATCH,))
        for which in (0, 1) if number % 2 else (1, 0):
            step(which, words, labels)
    beyond = [ours - theirs for theirs, ours in zip(*times, strict=True)]
    return {
        "layers": layers,
        "width": width,
        "steps": len(order),
        "plain_seconds": sum(times[0]),
        "ours_seconds": sum(times[1]),
        "ratio": sum(times[1]) / sum(times[0]),
        "first_three_lengths_seconds": sum(beyond[:3]),
        "ratio_without_them": sum(times[1][3:]) / sum(times[0][3:]),
    }


def new_shape(layers: int, width: int) -> dict[str, float]:
    """Prices of a step at a length that was not met before, against a trace of it."""
    model = bert(layers, width)
    prices = StepPrices(model)
    derived, traced = [], []
    for length in LENGTHS:
        words = torch.zeros(BATCH, length, dtype=torch.long)
        begin = time.process_time()
        forward = prices.forward((words,))
        prices.of(forward, (0, 1)), prices.saved(forward, "real"), prices.to_feature(forward)
        derived.append(time.process_time() - begin)
    for length in LENGTHS[:4]:
        begin = time.process_time()
        fresh = StepPrices(model)
        forward = fresh.forward((torch.zeros(BATCH, length, dtype=torch.long),))
        fresh.of(forward, (0, 1)), fresh.saved(forward, "real"), fresh.to_feature(forward)
        traced.append(time.process_time() - begin)
    return {
        "first_three_ms": 1e3 * sum(derived[:3]),
        "fourth_ms": 1e3 * derived[3],
        "later_median_ms": 1e3 * statistics.median(derived[4:]),
        "fresh_trace_ms": 1e3 * statistics.median(traced),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4, help="of the text model")
    parser.add_argument("--width", type=int, default=256, help="of the text model")
    parser.add_argument("--rounds", type=int, default=16, help="times that every length comes")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = new_shape(arguments.layers, arguments.width)
    print("price at a new length:", {name: round(value, 3) for name, value in shape.items()}, flush=True)
    text = text_loop(arguments.layers, arguments.width, arguments.rounds)
    print("text loop:", {k: round(v, 3) if isinstance(v, float) else v for k, v in text.items()}, flush=True)
    if arguments.json:
        record = {"machine": environment(1, "cpu"), "targets": TARGETS, "new_shape": shape}
        arguments.json.write_text(json.dumps({**record, "text_loop": text}, indent=2) + "\n")


if __name__ == "__main__":
    main()
