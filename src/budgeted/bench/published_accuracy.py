"""Accuracies that the paper prints, to stand beside ours; nothing here is computed.

"Paper" is aL-SAR (ICLR 2025). A value is shown beside ours where data set, stream and method are the same; where model
or length differ, the heading says at what size it was printed, for the two cannot be expected to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Printed:
    """One row of a table of the paper: means and standard deviations in percent."""

    a_auc: float
    a_auc_sd: float
    a_last: float
    a_last_sd: float
    tmac: float
    """compute as printed, which is MACs"""

    def cells(self) -> tuple[str, str, str]:
        return (
            f"{self.a_auc:.2f}±{self.a_auc_sd:.2f}",
            f"{self.a_last:.2f}±{self.a_last_sd:.2f}",
            f"{self.tmac:,.2f}TMAC",
        )


@dataclass(frozen=True)
class PrintedTable:
    """What it was made with, and its rows by our methods' names."""

    source: str
    dataset: str
    stream: str
    model: str
    samples: int
    rows: Mapping[str, Printed]

    def same_size(self, config: Mapping[str, Any]) -> bool:
        return config.get("model") == self.model and config.get("limit") in (None, self.samples)


COMPONENTS = PrintedTable(
    "component study", "cifar10", "gaussian", "resnet32", 50_000,
    {
        "vanilla": Printed(60.76, 0.11, 70.08, 0.97, 163.74),
        "al": Printed(60.38, 0.54, 69.04, 0.83, 142.23),
        "sar": Printed(64.60, 0.83, 72.43, 0.38, 171.94),
        "al-sar": Printed(64.38, 0.32, 72.57, 0.79, 146.80),
    },
)  # fmt: skip
VIT = PrintedTable(
    "ViT-B from scratch", "cifar10", "gaussian", "vit-base", 50_000,
    {"vanilla": Printed(33.13, 3.15, 28.58, 4.64, 4044.25), "al": Printed(33.34, 3.44, 30.44, 6.22, 3926.65)},
)  # fmt: skip
PRINTED = (COMPONENTS, VIT)


def printed_for(config: Mapping[str, Any]) -> PrintedTable | None:
    """The paper's table for runs of this kind: the same data set and stream, and the same kind of model."""
    transformer = str(config.get("model", "")).startswith("vit")
    for table in PRINTED:
        same = (table.dataset, table.stream) == (config["dataset"], config["stream"])
        if same and table.model.startswith("vit") == transformer:
            return table
    return None


def printed_row(config: Mapping[str, Any]) -> Printed | None:
    """The paper's row for this method with its own parts; none where a part or a setting was exchanged."""
    table = printed_for(config)
    changed = config.get("settings") or any(config.get(part) for part in ("freezing", "retrieval", "codec"))
    return None if table is None or changed else table.rows.get(config["method"])
