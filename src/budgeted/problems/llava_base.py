"""The tiny LLaVA's base, pretrained on the known concepts of the drawn Bongard: what a published model brings with it.

All weights learn: first what pictures share, then positive or negative beside it. Every word is read and written once
in a while without pictures, since one that was never written would stay unlikely under adapters too. It takes less
than a minute on one core; its cost is written beside it and is no part of any run's budget.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from budgeted.budget import NOTHING, total
from budgeted.freezing import LayerFreezing
from budgeted.models.llava import llava, without_bars
from budgeted.models.llava_base import MADE, Pretraining
from budgeted.models.llava_words import answers_of, batch_of, tiny_processor
from budgeted.streams.bongard.answers import score_choices
from budgeted.streams.bongard.drawn import DrawnBongard
from budgeted.streams.bongard.items import SHORT, Kind, items_of
from budgeted.streams.bongard.problem import Item
from budgeted.streams.bongard.sets import drawn_world

_SHOWN = 300  # problems whose texts the tokenizer learns from
_REPEATED = 50  # so often every word beside them, so that each becomes a token
_AT_ONCE = 100  # questions answered together
_LONGEST = 8  # tokens of an answer
_KINDS: tuple[Kind, ...] = ("pn", "ca")
Report = Callable[[int, int], None]


def make_base(pretraining: Pretraining | None = None, folder: Path | None = None, report: Report | None = None) -> Path:
    """Pretrain the tiny LLaVA, unless that was done; the folder of its base. `report` hears of steps, done and all."""
    pretraining = pretraining or Pretraining()
    place = folder or pretraining.folder
    if (place / MADE).is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same bits however many threads a run has
    try:
        _write(pretraining, part, report)
        part.chmod(0o755)
        os.rename(part, place)  # whole or not at all
    except OSError:
        if not (place / MADE).is_file():  # otherwise another process was quicker
            raise
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(part, ignore_errors=True)
    return place


@cache
def drawn_processor(world: int = 1) -> Any:
    """Tokenizer and image processor for the drawn questions."""
    data = drawn_world(world)
    shown = [item for kind in _KINDS for item in items_of(data.known[:_SHOWN], kind, SHORT)]
    texts = [f"{item.question.replace('<image>', '')} {item.answer}" for item in shown]
    return tiny_processor(texts + [f", {word}, {word}" for word in data.words()] * _REPEATED)


def _write(pretraining: Pretraining, folder: Path, report: Report | None) -> None:
    data, processor = drawn_world(pretraining.world), drawn_processor(pretraining.world)
    started = time.process_time()
    model, spent = _pretrained(pretraining, data, processor, report)
    seconds = time.process_time() - started
    with without_bars():
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
    facts = {
        "pretraining": {name: getattr(pretraining, name) for name in Pretraining.__dataclass_fields__},
        "spent": {"paper": spent.paper, "real": spent.real},
        "cpu_seconds": round(seconds, 1),
        "accuracy": {kind: accuracy(model, processor, data, items_of(data.test, kind, SHORT)) for kind in _KINDS},
    }
    (folder / MADE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _pretrained(pretraining: Pretraining, data: DrawnBongard, processor: Any, report: Report | None) -> Any:
    model, draw = llava(seed=pretraining.seed), random.Random(pretraining.seed)
    pn, ca = (items_of(data.known, kind, SHORT, pretraining.seed) for kind in _KINDS)
    words = [Item(word, word, f"Choice List: [{word}] Your answer is:", (), word, (word,)) for word in data.words()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=pretraining.rate)
    picture, few, last = cache(data.picture), pretraining.batch // 8, pretraining.concepts + pretraining.both
    many = pretraining.batch - few
    freezing, spent = None, NOTHING
    for step in range(last):
        rate = min(1, (step + 1) / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / last)))
        for group in optimizer.param_groups:
            group["lr"] = pretraining.rate * rate
        of_concepts = many if step < pretraining.concepts else many * 3 // 7
        items = draw.sample(ca, of_concepts) + draw.sample(pn, many - of_concepts) + draw.sample(words, few)
        batch = {**_batch(processor, items, picture), "use_cache": False}
        freezing = freezing or LayerFreezing(model, "none", keywords=batch, loss="graph", optimizer=optimizer)
        optimizer.zero_grad()
        spent += total(freezing.backward(model(**batch).loss).costs.values())
        optimizer.step()
        if report is not None:
            report(step + 1, last)
    if freezing is not None:
        freezing.remove()
    return model, spent


def accuracy(model: nn.Module, processor: Any, data: DrawnBongard, items: Sequence[Item]) -> float:
    """Share of the questions that the model answers rightly."""
    right = 0
    for start in range(0, len(items), _AT_ONCE):
        part = items[start : start + _AT_ONCE]
        said = answers_of(model, processor, _batch(processor, part, data.picture, answers=False), _LONGEST)
        right += score_choices(said, [item.choices for item in part], [item.answer for item in part]).right
    return right / len(items)


def _batch(
    processor: Any, items: Sequence[Item], picture: Callable[[str], Any], answers: bool = True
) -> dict[str, Tensor]:
    return batch_of(
        processor,
        [item.question for item in items],
        [[picture(name) for name in item.pictures] for item in items],
        [item.answer for item in items] if answers else None,
    )
