"""`budgeted blocks llava-1.5-7b`: the chain of a LLaVA with adapters, its price, and what freezing can save."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from budgeted.bench.llava_costs import LlavaCosts, why_the_paper_differs
from budgeted.budget import format_compute, total
from budgeted.cli.console import wide_console


def summary_of(costs: LlavaCosts) -> dict[str, Any]:
    """What is printed beside the blocks, for a script."""
    again = total(costs.checkpointed.backward)
    return {
        "tokens": costs.tokens,
        "pictures": costs.pictures,
        "trained_parameters": sum(p.numel() for p in costs.model.parameters() if p.requires_grad),
        "backward_checkpointed": {"paper": again.paper, "real": again.real},
        "left": [
            {
                "decoder_layers_frozen": row.layers,
                "prefix": row.prefix,
                "projector_trained": row.projector_trained,
                "prefix_checkpointed": row.checkpointed,
            }
            for row in costs.left
        ],
    }


def print_orders(costs: LlavaCosts) -> None:
    """Both orders of the prefix, gradient checkpointing, and the paper's number."""
    console = wide_console()
    again = total(costs.checkpointed.backward)
    console.print(
        "with gradient checkpointing: backward "
        f"{format_compute(again.paper, 'paper')}, {format_compute(again.real, 'real')}",
        highlight=False,
    )
    table = Table(title="share of a full step that is left (rule real)", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("decoder layers\nfrozen", "projector in\nthe prefix", "projector\nalways trained"):
        table.add_column(name, justify="right")
    table.add_column("in the prefix,\ncheckpointed", justify="right")
    for row in costs.left:
        shares = (row.prefix, row.projector_trained, row.checkpointed)
        table.add_row(str(row.layers), *(f"{share:.3f}" for share in shares))
    console.print(table)
    for line in why_the_paper_differs(costs):
        console.print(line, highlight=False)
