"""What a training step of LLaVA with adapters costs, found without its weights; and what freezing leaves of it.

The order of the prefix decides what can be saved. With the projector inside it (embedding, vision tower, projector,
decoder layers) the backward stops at the first trained decoder layer. With the projector always trained the gradient
must come down to it through every frozen layer, and only the adapters' own weight gradients are saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from budgeted.budget import BlockPrices, Pricer, trace
from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain, chain_of_trace
from budgeted.freezing.units import Granularity
from budgeted.models.llava import SHAPES, LlavaShape, on_meta
from budgeted.models.llava_lora import PROJECTOR, PUBLISHED, SMALL, Lora, with_lora

TOKENS, PICTURES = 3000, 5
PAPER_MODEL = "llava-1.5-7b"
PAPER_TFLOPS = 1578.02
PAPER_ITERATIONS = 3599
PAPER_SAMPLES = 2
"""of one iteration"""


@dataclass(frozen=True, slots=True)
class Left:
    """Shares of a full step, forward and backward, that are left with the first decoder layers frozen (rule `real`)."""

    layers: int
    prefix: float
    """everything below them rests too, the projector included"""
    projector_trained: float
    checkpointed: float
    """as `prefix`, with gradient checkpointing, of a full step with it"""


@dataclass(frozen=True, slots=True)
class LlavaCosts:
    """One sample's step."""

    name: str
    model: nn.Module
    chain: BlockChain
    step: BlockPrices
    frozen: frozenset[int]
    checkpointed: BlockPrices
    left: tuple[Left, ...]
    tokens: int
    pictures: int


def llava_costs(
    name: str,
    *,
    tokens: int | None = None,
    pictures: int = PICTURES,
    frozen: int = 0,
    granularity: Granularity = "block",
) -> LlavaCosts:
    """Price a step of one sample with so many tokens, of which the pictures take their part."""
    if name not in SHAPES:
        raise BudgetedError(f"{name} is no LLaVA that is known by its sizes: give one of {', '.join(SHAPES)}")
    shape = SHAPES[name]
    tokens = min(TOKENS, shape.places) if tokens is None else tokens
    _refuse_too_many(shape, tokens, pictures)
    chosen = PUBLISHED if shape.hub else SMALL
    plain, model = _traced(name, chosen, tokens, pictures, granularity, checkpointing=False)
    again, _ = _traced(name, chosen, tokens, pictures, granularity, checkpointing=True)
    fixed = chain_of_trace(model, plain.trace, granularity, [PROJECTOR] if chosen.projector else [])
    price = Pricer(plain.trace, plain.block_of, len(plain))
    price_again = Pricer(again.trace, again.block_of, len(again))
    full, full_again = price.prices(), price_again.prices()
    left = []
    for layers in _rows(plain):
        below = range(_first_after(plain, layers))
        left.append(
            Left(
                layers,
                _share(price, plain, below, full),
                _share(price, fixed, below, full),
                _share(price_again, again, below, full_again),
            )
        )
    resting = plain.check(range(frozen))
    return LlavaCosts(
        name, model, plain, price.prices(plain.trained(resting)), resting, full_again, tuple(left), tokens, pictures
    )


def _traced(
    name: str, lora: Lora, tokens: int, pictures: int, granularity: Granularity, checkpointing: bool
) -> tuple[BlockChain, nn.Module]:
    model = with_lora(on_meta(name), lora).train()
    if checkpointing:
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    side = SHAPES[name].pixels
    words = torch.empty((1, tokens), dtype=torch.long, device="meta")
    given = {"input_ids": words, "attention_mask": words, "labels": words, "use_cache": False}
    if pictures:
        given["pixel_values"] = torch.empty((pictures, 3, side, side), device="meta")
    return chain_of_trace(model, trace(model, (), given), granularity), model


def _share(price: Pricer, chain: BlockChain, below: range, full: BlockPrices) -> float:
    return price.prices(chain.trained(below)).total.real / full.total.real


def _rows(chain: BlockChain) -> list[int]:
    """A quarter, a half and all but the last of the decoder layers."""
    layers = sum("language_model.layers." in block.name for block in chain.blocks)
    return sorted({layers // 4, layers // 2, layers - 1} - {0})


def _first_after(chain: BlockChain, layers: int) -> int:
    """The block that comes after so many decoder layers."""
    decoder = [number for number, block in enumerate(chain.blocks) if "language_model.layers." in block.name]
    return decoder[layers]


def _refuse_too_many(shape: LlavaShape, tokens: int, pictures: int) -> None:
    if not 1 <= tokens <= shape.places:
        raise BudgetedError(f"{tokens} tokens: this model takes 1 to {shape.places}")
    if not 0 <= pictures * shape.tokens_of_a_picture < tokens:
        raise BudgetedError(
            f"{pictures} pictures of {shape.tokens_of_a_picture} tokens do not fit into {tokens}: "
            "give more tokens or fewer pictures"
        )


def why_the_paper_differs(costs: LlavaCosts) -> list[str]:
    """What the paper prints for a whole run of the model that it used, and what that number is."""
    if costs.name != PAPER_MODEL:
        return []
    whole = PAPER_ITERATIONS * PAPER_SAMPLES * costs.step.total.real / 1e12
    return [
        f'The paper\'s "{PAPER_TFLOPS:,.0f} TFLOPs" for a run of {PAPER_ITERATIONS:,} iterations of {PAPER_SAMPLES} '
        "samples is no such number: it sums the adapters alone, by a formula that leaves out the width of their "
        "outputs, for 157 words and no picture, in units of 1e10. "
        f"A run of that length executes about {whole:,.0f} TFLOP (rule real)."
    ]
