"""A tiny LLaVA learns thirty new concepts from a stream of questions over pictures, with and without freezing.

Everything is made here: pictures are drawn, the model comes from a seed, nothing is downloaded. The model first learns
some concepts whole, as a pretrained one would. Then its weights rest, adapters (LoRA) and projector are trained on the
stream by one forward and one backward a step, and the backward leaves out what the freezing policy freezes.

    python examples/llava_bongard.py                       # concept questions, no freezing against adaptive
    python examples/llava_bongard.py --kind pn --seed 2    # is the query positive or negative?
    python examples/llava_bongard.py --always multi_modal_projector   # the projector never rests: little is saved
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from budgeted.budget import format_compute
from budgeted.models.llava import llava
from budgeted.models.llava_lora import SMALL, with_lora
from budgeted.models.llava_words import answers_of, batch_of, tiny_processor
from budgeted.plugin import AdaptiveFreezing
from budgeted.streams.bongard import SHORT, DrawnBongard, Item, Kind, drawn_bongard, items_of, score_choices

BATCH = 16


@dataclass
class World:
    """The drawn pictures, the words for them, and how both become a batch."""

    data: DrawnBongard
    processor: Any

    def __post_init__(self) -> None:
        self.picture = functools.cache(self.data.picture)

    def batch(self, items: Sequence[Item], answers: bool = True) -> dict[str, Tensor]:
        return batch_of(
            self.processor,
            [item.question for item in items],
            [[self.picture(name) for name in item.pictures] for item in items],
            [item.answer for item in items] if answers else None,
        )

    def accuracy(self, model: nn.Module, items: Sequence[Item]) -> float:
        right = 0
        for start in range(0, len(items), 64):
            part = items[start : start + 64]
            said = answers_of(model, self.processor, self.batch(part, answers=False), longest=6)
            right += score_choices(said, [item.choices for item in part], [item.answer for item in part]).right
        return right / len(items)


def world_of(seed: int, known: int = 1500, test: int = 4) -> World:
    data = drawn_bongard(seed, known=known, test=test)
    shown = [item for kind in ("pn", "ca") for item in items_of(data.known[:300], kind, SHORT)]  # type: ignore[arg-type]
    texts = [f"{item.question.replace('<image>', '')} {item.answer}" for item in shown]
    texts += [f", {word}, {word}" for word in data.words()] * 50  # each a token, as a grown tokenizer would have them
    return World(data, tiny_processor(texts))


def pretrained(world: World, seed: int, steps: tuple[int, int]) -> nn.Module:
    """All weights learn the known concepts: what pictures share first, then positive or negative beside it.

    Every word is read and written once in a while, without pictures: a word that was never written would stay unlikely.
    """
    model, draw = llava(seed=seed), random.Random(seed)
    ca, pn = (items_of(world.data.known, kind, SHORT, seed) for kind in ("ca", "pn"))  # type: ignore[arg-type]
    words = [
        Item(word, word, f"Choice List: [{word}] Your answer is:", (), word, (word,)) for word in world.data.words()
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    last = sum(steps)
    for step in range(last):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / last)))
        items = draw.sample(ca, BATCH - 2) if step < steps[0] else draw.sample(ca, 6) + draw.sample(pn, 8)
        loss = model(**world.batch(items + draw.sample(words, 2)), use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@dataclass(frozen=True)
class Learned:
    """What one pass over the stream came to."""

    before: float
    after: float
    executed: int
    not_run: float
    seconds: float


def learn(
    world: World, base: nn.Module, kind: Kind, policy: str, steps: int, always: Sequence[str], seed: int
) -> Learned:
    model = with_lora(copy.deepcopy(base), SMALL, seed=seed).train()
    test = items_of(world.data.test, kind, SHORT)
    before = world.accuracy(model, test)
    stream, memory = items_of(world.data.train, kind, SHORT), list[Item]()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    settings = {"ema_start": "corrected"} if policy == "adaptive" else {"n": 9} if policy == "constant" else {}
    freezing = AdaptiveFreezing(model, optimizer, policy=policy, always=always, **settings)
    draw, started = random.Random(seed), time.process_time()
    for step in range(steps):
        memory += stream[len(memory) : math.ceil((step + 1) * len(stream) / steps)]
        items = draw.sample(memory, min(BATCH, len(memory)))
        optimizer.zero_grad()
        freezing.backward(model(**world.batch(items), use_cache=False).loss)
        optimizer.step()
    seconds = time.process_time() - started
    return Learned(before, world.accuracy(model, test), freezing.spent.real, freezing.frozen_share, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=("ca", "pn"), default="ca")
    parser.add_argument("--policies", nargs="+", default=["none", "adaptive"])
    parser.add_argument("--always", nargs="*", default=[], help="modules that never rest")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--pretraining", type=int, nargs=2, default=(150, 450))
    parser.add_argument("--known", type=int, default=1500, help="problems to pretrain on")
    parser.add_argument("--test", type=int, default=4, help="test problems of each new concept")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    world, started = world_of(given.seed, given.known, given.test), time.process_time()
    base = pretrained(world, given.seed, tuple(given.pretraining))
    print(f"seed {given.seed}: pretrained in {time.process_time() - started:.0f} CPU seconds")
    for policy in given.policies:
        found = learn(world, base, given.kind, policy, given.steps, given.always, given.seed)
        print(
            f"{given.kind} {policy:9} accuracy {found.before:.1%} -> {found.after:.1%}, "
            f"executed {format_compute(found.executed, 'real')}, {found.not_run:.1%} of the backward not run, "
            f"{found.seconds:.0f} CPU seconds",
            flush=True,
        )


if __name__ == "__main__":
    main()
