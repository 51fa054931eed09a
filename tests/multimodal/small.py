"""A tiny LLaVA, its words and a few questions over drawn pictures; made once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from budgeted.models.llava import llava, without_bars
from budgeted.models.llava_lora import SMALL, Lora, with_lora
from budgeted.models.llava_words import batch_of, tiny_processor
from budgeted.problems.llava_base import drawn_processor
from budgeted.streams.bongard.drawn import DrawnBongard, drawn_bongard
from budgeted.streams.bongard.items import SHORT, items_of
from budgeted.streams.bongard.problem import Item


@cache
def world() -> tuple[DrawnBongard, tuple[Item, ...], Any]:
    """Pictures, questions of both kinds, and the processor."""
    data = drawn_bongard(seed=3, known=8, train=1, test=1)
    items = (*items_of(data.train, "ca", SHORT), *items_of(data.train, "pn", SHORT))
    texts = [f"{item.question.replace('<image>', '')} {item.answer}" for item in items]
    return data, items, tiny_processor([*texts, *(f", {word}, {word}" for word in data.words() * 9)])


def batch(items: tuple[Item, ...], answers: bool = True) -> dict[str, Tensor]:
    data, _, processor = world()
    return batch_of(
        processor,
        [item.question for item in items],
        [[data.picture(name) for name in item.pictures] for item in items],
        [item.answer for item in items] if answers else None,
    )


def uneven() -> dict[str, Tensor]:
    """Questions of different lengths and picture counts, so that some rows are padded."""
    _, items, _ = world()
    found = batch((items[0], items[30], items[31], items[1]))
    assert not bool(found["attention_mask"].all())
    return found


def adapted(settings: Lora = SMALL, checkpointing: bool = False) -> nn.Module:
    model: Any = with_lora(llava(seed=1), settings, seed=1).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model  # type: ignore[no-any-return]


def drawn_base(folder: Path) -> None:
    """A folder with the tiny LLaVA as it is drawn from a seed, and the processor of the drawn questions."""
    with without_bars():
        model: Any = llava(seed=1)
        model.save_pretrained(folder)
        drawn_processor().save_pretrained(folder)
