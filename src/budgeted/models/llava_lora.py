"""Low-rank adapters (LoRA, by peft) on LLaVA's language model; the pictures' tower rests.

The published experiment adapts every linear layer of the language model, not its head: rank 128, alpha 256, dropout
0.05, no biases. Bare layer names such as `q_proj` would also match the pictures' tower, whose layers have the same
names, so the targets are one expression that asks for `language_model`. The projector between the towers is trained
whole or not at all (the paper trains it; the published script sets its learning rate to 0).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from budgeted.errors import BudgetedError, UnknownName, needed

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROJECTOR = "multi_modal_projector"


@dataclass(frozen=True, slots=True)
class Lora:
    """Settings of the adapters."""

    rank: int = 128
    alpha: int = 256
    dropout: float = 0.05
    """draws from torch's global generator, so that a run with it repeats only if that is seeded"""
    layers: tuple[str, ...] = LAYERS
    projector: bool = True
    """whether the projector is trained"""


PUBLISHED = Lora()
SMALL = Lora(rank=8, alpha=16, dropout=0.0)
"""for the tiny one"""


def said_otherwise(settings: Lora, said: str) -> Lora:
    """The settings with what a model's name says of them, as in rank=4&alpha=8&dropout=0&projector=false."""
    kinds: dict[str, Callable[[str], Any]] = {
        "rank": int, "alpha": int, "dropout": float, "projector": {"true": True, "false": False}.__getitem__,
    }  # fmt: skip
    for pair in filter(None, said.split("&")):
        name, _, value = pair.partition("=")
        if name not in kinds:
            raise UnknownName("setting of the adapters", name, kinds)
        try:
            settings = replace(settings, **{name: kinds[name](value)})
        except (KeyError, ValueError) as error:
            raise BudgetedError(f"{pair}: rank and alpha are whole numbers, projector is true or false") from error
    return settings


def with_lora(model: nn.Module, settings: Lora = PUBLISHED, *, seed: int = 0) -> nn.Module:
    """The model with adapters, drawn from `seed`; nothing but them and the projector is trained."""
    if settings.rank < 1 or not 0 <= settings.dropout < 1:
        raise BudgetedError(f"rank {settings.rank}, dropout {settings.dropout}: rank from 1, dropout in [0, 1)")
    peft = needed("peft", "adapters need the package peft: pip install 'budgeted[multimodal]'")
    chosen = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        bias="none",
        target_modules=target(settings.layers),
        modules_to_save=[PROJECTOR] if settings.projector else None,
    )
    on_meta = next(model.parameters()).is_meta  # then the adapters take no memory either
    with torch.random.fork_rng(devices=[]), torch.device("meta") if on_meta else contextlib.nullcontext():
        torch.default_generator.manual_seed(seed)
        adapted: nn.Module = peft.get_peft_model(model, chosen)
    return adapted


def target(layers: tuple[str, ...] = LAYERS) -> str:
    """The expression that matches these layers of the language model, and none of the pictures' tower."""
    return rf"(?:.*\.)?language_model\.(?:.*\.)?(?:{'|'.join(layers)})"
