"""`budgeted blocks`: the block chain of a model, with what every block holds and costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from rich import box
from rich.table import Table
from torch import nn
from tyro.conf import Positional, arg

from budgeted import models
from budgeted.bench.llava_costs import PICTURES, llava_costs
from budgeted.budget import RULES, BlockPrices, Cost, format_bytes, total
from budgeted.budget.units import UNIT_OF_RULE
from budgeted.cli.console import wide_console
from budgeted.cli.llava_blocks import print_orders, summary_of
from budgeted.cli.model_argument import parse_shape
from budgeted.errors import BudgetedError
from budgeted.freezing import BlockChain, StepPrices
from budgeted.models.llava import SHAPES

MOST_BATCH = 10_000


@dataclass(frozen=True)
class Blocks:
    """Print the block chain of a model: parameters, bytes, and prices per image under both rules.

    Rule `paper` is in MAC (one per multiply-accumulate, as the paper counts), rule `real` in FLOP (operations as
    executed).
    """

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A model's name, such as resnet32 or llava-1.5-7b, or package.module:function for your own."""
    input: str = "3x32x32"
    """Shape of one image: channels x height x width."""
    classes: int = 10
    """Outputs of the head (models by name only)."""
    granularity: Literal["block", "layer"] = "block"
    """Whole blocks, or single layers."""
    frozen: int = 0
    """Show the backward with this many blocks frozen, from the stem on."""
    batch: int = 16
    """Batch that is priced; the figures are per image."""
    tokens: int | None = None
    """Tokens of one sample, pictures included (LLaVA only; 3,000 where the model takes them)."""
    pictures: int = PICTURES
    """Pictures of one sample (LLaVA only)."""
    json: bool = False
    """Print JSON for a script."""

    def run_(self) -> None:
        if self.model in SHAPES:
            self._llava()
        else:
            self._images()

    def _llava(self) -> None:
        costs = llava_costs(
            self.model,
            tokens=self.tokens,
            pictures=self.pictures,
            frozen=self.frozen,
            granularity=self.granularity,
        )
        what = f"{costs.tokens:,} tokens and {costs.pictures} pictures"
        summary = _summary(self.model, what, costs.model, costs.chain, costs.frozen, costs.step) | summary_of(costs)
        if self.json:
            print(json.dumps(summary, indent=1))
        else:
            _print(summary, "sample")
            print_orders(costs)

    def _images(self) -> None:
        shape = parse_shape(self.input)
        if self.batch > MOST_BATCH:
            raise BudgetedError(f"--batch must be at most {MOST_BATCH:,}: the figures are per image")
        model = models.build(self.model, classes=self.classes, input_shape=shape).train()
        prices = StepPrices(model, loss=None, granularity=self.granularity)
        example = prices.forward([torch.empty(max(2, self.batch), *shape)])
        chain = prices.chain(example)
        frozen = chain.check(range(self.frozen))
        step = prices.of(example, frozen)
        summary = _summary(self.model, self.input, model, chain, frozen, step)
        if self.json:
            print(json.dumps(summary, indent=1))
        else:
            _print(summary)


def _summary(
    name: str, given: str, model: nn.Module, chain: BlockChain, frozen: frozenset[int], step: BlockPrices
) -> dict[str, Any]:
    sizes = dict(model.named_parameters())
    rows = []
    for index, block in enumerate(chain.blocks):
        own = [sizes[name] for name in chain.owned(index)]
        rows.append(
            {
                "block": index,
                "name": block.name,
                "frozen": index in frozen,
                "parameters": sum(p.numel() for p in own),
                "bytes": sum(p.numel() * p.element_size() for p in own),
                "forward": _per_image(step.forward[index], step.batch),
                "backward": _per_image(step.backward[index], step.batch),
            }
        )
    return {
        "model": name,
        "input": given,
        "granularity": chain.granularity,
        "blocks": rows,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in model.buffers()),
        "forward": _per_image(total(step.forward), step.batch),
        "backward": _per_image(total(step.backward), step.batch),
        "shared": {name: list(users) for name, users in chain.shared.items()},
        "unused": list(chain.unused),
    }


def _per_image(cost: Cost, batch: int) -> dict[str, int]:
    return {"paper": round(cost.paper / batch), "real": round(cost.real / batch)}


def _print(summary: dict[str, Any], per: str = "image") -> None:
    table = Table(
        title=f"{summary['model']}, input {summary['input']}, per {per}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    units = {rule: _unit(summary, rule) for rule in RULES}
    table.add_column("", justify="right")
    table.add_column("block", overflow="fold")
    table.add_column("params", justify="right")
    table.add_column("bytes", justify="right")
    for rule in RULES:
        for way in ("forward", "backward"):
            table.add_column(f"{way}\n{units[rule][1]}{UNIT_OF_RULE[rule]}", justify="right")

    def costs(row: dict[str, Any]) -> list[str]:
        return [f"{row[way][rule] / units[rule][0]:,.3f}" for rule in RULES for way in ("forward", "backward")]

    wrapped = _common([row["name"] for row in summary["blocks"]])
    for row in summary["blocks"]:
        name = row["name"].removeprefix(wrapped) + (" (frozen)" if row["frozen"] else "")
        table.add_row(str(row["block"]), name, f"{row['parameters']:,}", format_bytes(row["bytes"]), *costs(row))
    table.add_section()
    table.add_row("", "all", f"{summary['parameters']:,}", format_bytes(summary["bytes"]), *costs(summary))
    console = wide_console()
    console.print(table)
    exact = [f"{way} {summary[way]['paper']:,} MAC, {summary[way]['real']:,} FLOP" for way in ("forward", "backward")]
    console.print("all, exactly: " + "; ".join(exact), highlight=False)
    if summary["shared"]:
        console.print("shared between blocks: " + ", ".join(summary["shared"]), highlight=False)
    if summary["unused"]:
        console.print("never read by the forward: " + ", ".join(summary["unused"]), highlight=False)


def _common(names: list[str]) -> str:
    """What wrappers put before every name, as peft does; it tells nothing and takes half the width."""
    shared: list[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(f"{parts[0]}.")
    return "".join(shared)


def _unit(summary: dict[str, Any], rule: str) -> tuple[int, str]:
    """One unit for a whole column, by its largest entry."""
    largest = max(summary["forward"][rule], summary["backward"][rule])
    units = (("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))
    return max(((size, name) for name, size in units if size <= largest), default=(1, ""))
