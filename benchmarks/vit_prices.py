"""What ViT-B and ViT-L cost at 224 pixels, under both rules, beside what the paper's tables print.

Priced from a trace: nothing is computed, and no weight is drawn. The tables go into docs/vit.md as they are printed.

    python benchmarks/vit_prices.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from budgeted.budget import Cost, prices, total
from budgeted.freezing import StepPrices
from budgeted.models.vit import BASE, LARGE, ViTShape, vision_transformer

IMAGES = 799_880  # that pass through the model in the paper's run on CIFAR-10: batches of 16, one a sample
PREFIXES = (1, 4, 7, 10)


@dataclass(frozen=True)
class Priced:
    """One image through one model, forward and backward."""

    name: str
    parameters: int
    blocks: int
    forward: Cost
    backward: Cost
    attention: int  # multiply-accumulates of scores and mixing, both ways, in `forward` and `backward`
    biases: int  # additions of biases, both ways
    saved: tuple[Cost, ...]  # backward saved by freezing the first n blocks, for n in PREFIXES
    printed: tuple[float, str]  # "TFLOPs" of the run in the paper's table, and how it writes them


def priced(name: str, shape: ViTShape, printed: tuple[float, str]) -> Priced:
    with torch.device("meta"):
        model = vision_transformer(shape, 10, (3, 224, 224))
        image = torch.empty(1, 3, 224, 224)
    model.to_empty(device="cpu")  # for the processor's own attention; memory that is not written to is not taken
    steps = StepPrices(model, loss=None)
    forward = steps.forward([image])
    step, chain = steps.of(forward), steps.chain(forward)
    attention = biases = 0
    for op in chain.trace.ops:
        price = prices.find(op.name)
        if price is not None and "dot_product" in op.name:
            attention += price(op).paper_forward + price(op).paper_input
        elif op.name in ("addmm", "convolution"):
            biases += 3 * op.out.numel
    backward = total(step.backward)
    return Priced(
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        len(chain),
        total(step.forward),
        backward,
        attention,
        biases,
        tuple(backward - total(steps.of(forward, range(n)).backward) for n in PREFIXES),
        printed,
    )


def per_image(models: list[Priced]) -> list[str]:
    lines = [
        "| model | parameters | blocks | forward, GMAC | backward, GMAC | forward, GFLOP | backward, GFLOP "
        "| attention |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in models:
        costs = (one.forward.paper, one.backward.paper, one.forward.real, one.backward.real)
        both = one.forward.paper + one.backward.paper
        cells = [f"`{one.name}`", f"{one.parameters:,}", str(one.blocks), *(f"{cost / 1e9:.3f}" for cost in costs)]
        lines.append(f"| {' | '.join(cells)} | {one.attention / both:.1%} |")
    return lines


def beside_the_paper(models: list[Priced]) -> list[str]:
    lines = [
        "| model | the paper prints | products of weights | and biases | and attention: rule `paper` | rule `real` "
        "| products over printed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in models:
        both = one.forward.paper + one.backward.paper
        without = both - one.attention
        runs = [cost * IMAGES / 1e12 for cost in (without - one.biases, without, both)]
        real = (one.forward.real + one.backward.real) * IMAGES / 1e12
        amount, text = one.printed
        cells = [f"`{one.name}`", text, *(f"{run:,.0f} TMAC" for run in runs), f"{real:,.0f} TFLOP"]
        lines.append(f"| {' | '.join(cells)} | {runs[0] / amount:.2f} |")
    return lines


def savings(models: list[Priced]) -> list[str]:
    lines = [
        f"| model | {' | '.join(f'first {n}' for n in PREFIXES)} |",
        f"| --- |{' ---: |' * len(PREFIXES)}",
    ]
    for one in models:
        whole = one.forward + one.backward
        shares = [f"{saved.paper / whole.paper:.1%} / {saved.real / whole.real:.1%}" for saved in one.saved]
        lines.append(f"| `{one.name}` | {' | '.join(shares)} |")
    return lines


def tables() -> list[list[str]]:
    models = [
        priced("vit-b", BASE, (4_044.25, "4,044.25 TFLOPs")),
        priced("vit-l", LARGE, (14_316.37, "14,316.37 TFLOPs")),
    ]
    return [per_image(models), beside_the_paper(models), savings(models)]


if __name__ == "__main__":
    print("\n\n".join("\n".join(table) for table in tables()))
