"""Accuracies that the paper prints, to stand beside ours; nothing here is computed.

"Paper" is aL-SAR (ICLR 2025). A value is shown beside ours where data set, stream, kind of network and method are the
same; where network or length differ, the heading says at what size it was printed, for the two cannot be expected to
agree. What the paper prints twice for the same runs is here once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Printed:
    """One row of a table of the paper: means and standard deviations in percent."""

    a_auc: float
    a_auc_sd: float | None
    a_last: float
    a_last_sd: float | None
    tmac: float | None
    """compute as printed, which is MACs; of ablations of SAR none is"""

    def cells(self) -> tuple[str, str, str]:
        return (
            _spread(self.a_auc, self.a_auc_sd),
            _spread(self.a_last, self.a_last_sd),
            "" if self.tmac is None else f"{self.tmac:,.2f}TMAC",
        )


def _spread(mean: float, sd: float | None) -> str:
    return f"{mean:.2f}" if sd is None else f"{mean:.2f}±{sd:.2f}"


@dataclass(frozen=True)
class PrintedTable:
    """What it was made with, and its rows by our names: of the method, and of the part that was exchanged."""

    source: str
    dataset: str
    stream: str
    model: str
    samples: int
    rows: Mapping[str, Printed]
    iterations: float = 1.0

    def same_size(self, config: Mapping[str, Any]) -> bool:
        return config.get("model") == self.model and config.get("limit") in (None, self.samples)


def _rows(**rows: tuple[float, float | None, float, float | None, float | None]) -> dict[str, Printed]:
    """An underscore stands for a blank."""
    return {name.replace("__", "-").replace("_", " "): Printed(*row) for name, row in rows.items()}


CIFAR = 50_000
PRINTED = (
    PrintedTable(
        "Tables 2, 4, 5 and 7", "cifar10", "gaussian", "resnet32", CIFAR,
        _rows(
            vanilla=(60.76, 0.11, 70.08, 0.97, 163.74), al=(60.38, 0.54, 69.04, 0.83, 142.23),
            sar=(64.60, 0.83, 72.43, 0.38, 171.94), al__sar=(64.38, 0.32, 72.57, 0.79, 146.80),
            remind=(59.25, 0.37, 65.01, 1.31, 151.31), sar_ptlf=(63.82, 0.24, 71.30, 0.91, 164.14),
            sar_egeria=(63.95, 0.72, 71.72, 0.81, 169.25), sar_random_half=(63.14, 0.51, 70.47, 1.15, 150.56),
            sar_random_whole=(61.79, 0.54, 69.84, 0.54, 122.99),
            sar_constant_quarter=(60.91, 0.80, 67.70, 0.83, 147.12),
            sar_constant_half=(53.59, 0.60, 57.31, 0.90, 109.48), sar_linear_half=(63.11, 0.90, 70.00, 1.04, 150.64),
            sar_linear_whole=(62.06, 0.90, 66.95, 2.31, 120.83), sar_use=(56.15, 0.43, 69.40, 0.38, None),
            sar_discounted=(62.72, 0.18, 71.10, 0.53, None),
        ),
    ),
    PrintedTable(
        "Tables 5, 6, 8 and 10", "cifar10", "disjoint", "resnet32", CIFAR,
        _rows(
            vanilla=(77.10, 0.58, 70.26, 0.91, 163.73), al=(76.98, 0.15, 70.58, 0.63, 141.50),
            sar=(79.10, 0.44, 71.77, 0.57, 171.94), al__sar=(79.75, 0.38, 70.70, 0.88, 143.51),
            remind=(73.20, 0.67, 62.95, 0.87, 151.31), sar_ptlf=(79.29, 0.36, 70.50, 0.43, 164.38),
            sar_egeria=(78.70, 0.54, 70.72, 0.68, 169.52), sar_random_half=(77.69, 0.51, 69.30, 1.77, 150.62),
            sar_random_whole=(77.31, 0.17, 68.89, 0.64, 120.92),
            sar_constant_quarter=(74.99, 0.24, 65.89, 0.50, 147.12),
            sar_constant_half=(67.64, 0.61, 55.59, 0.29, 109.48), sar_linear_half=(77.53, 0.47, 68.30, 1.52, 150.64),
            sar_linear_whole=(75.69, 0.77, 64.49, 1.22, 120.83), sar_use=(75.40, 0.36, 69.77, 1.16, None),
            sar_discounted=(77.59, 0.50, 71.31, 1.44, None),
        ),
    ),
    PrintedTable(
        "Tables 4 and 7", "cifar100", "gaussian", "resnet32", CIFAR,
        _rows(
            vanilla=(31.97, 0.89, 37.80, 1.30, 245.91), al=(31.77, 0.60, 38.03, 0.35, 217.40),
            sar=(37.60, 0.40, 42.69, 0.18, 257.97), al__sar=(37.20, 0.73, 42.55, 0.79, 221.49),
            sar_use=(30.74, 1.09, 36.51, 1.32, None), sar_discounted=(33.76, 0.67, 39.29, 0.98, None),
        ), 1.5,
    ),
    PrintedTable(
        "Tables 6 and 8", "cifar100", "disjoint", "resnet32", CIFAR,
        _rows(
            vanilla=(43.59, 0.86, 38.64, 0.35, 245.85), al=(43.20, 0.95, 38.44, 0.27, 225.92),
            sar=(45.61, 1.06, 39.68, 0.66, 257.91), al__sar=(45.00, 1.28, 39.39, 0.62, 228.14),
            sar_use=(42.11, 0.81, 37.83, 0.45, None), sar_discounted=(44.45, 0.85, 39.38, 0.72, None),
        ), 1.5,
    ),
    PrintedTable(
        "Table 2", "cifar100", "gaussian", "resnet32", CIFAR,
        _rows(
            sar=(42.49, 0.75, 50.49, 0.29, 515.82), remind=(35.50, 0.56, 40.00, 0.86, 453.92),
            sar_ptlf=(42.09, 0.58, 49.92, 0.65, 495.67), sar_egeria=(42.18, 0.63, 50.05, 0.72, 506.54),
            al__sar=(42.38, 0.76, 50.62, 0.87, 427.90),
        ), 3.0,
    ),
    PrintedTable(
        "Table 10", "cifar100", "disjoint", "resnet32", CIFAR,
        _rows(
            sar=(53.38, 1.13, 49.43, 0.72, 515.82), remind=(48.14, 1.30, 41.28, 0.14, 453.92),
            sar_ptlf=(53.22, 1.07, 49.25, 0.65, 497.77), sar_egeria=(52.95, 0.77, 48.88, 0.46, 502.41),
            al__sar=(53.33, 1.21, 48.91, 0.87, 425.65),
        ), 3.0,
    ),
    PrintedTable(
        "Table 11, from scratch", "cifar10", "gaussian", "vit-b", CIFAR,
        _rows(vanilla=(33.13, 3.15, 28.58, 4.64, 4044.25), al=(33.34, 3.44, 30.44, 6.22, 3926.65)),
    ),
    PrintedTable(
        "Table 12, ViT-L from scratch", "cifar10", "disjoint", "vit-l", CIFAR,
        _rows(vanilla=(41.27, 0.79, 19.52, 1.47, 14316.37), al=(41.63, 1.09, 21.19, 1.90, 13802.64)),
    ),
    *(
        PrintedTable(f"Table {number}", "cifar10", stream, f"cnn{layers}-wide", CIFAR,
                     {"vanilla": Printed(*vanilla), "al-sar": Printed(*al_sar)})
        for number, layers, stream, vanilla, al_sar in (
            (13, 8, "disjoint", (78.11, 0.18, 73.44, 0.91, 506.54), (81.25, 0.23, 75.28, 0.29, 418.19)),
            (13, 8, "gaussian", (58.95, 0.11, 74.59, 0.27, 506.54), (66.44, 0.18, 77.08, 1.09, 437.34)),
            (14, 16, "disjoint", (75.45, 0.86, 72.09, 0.84, 1236.51), (79.43, 0.34, 73.62, 1.31, 1025.14)),
            (14, 16, "gaussian", (54.59, 0.62, 71.43, 0.46, 1236.51), (62.71, 0.73, 74.62, 2.06, 1082.22)),
            (15, 32, "disjoint", (68.28, 0.95, 65.18, 1.66, 2096.46), (73.42, 0.41, 66.51, 0.23, 2304.73)),
            (15, 32, "gaussian", (46.00, 1.55, 60.30, 2.39, 2696.46), (53.21, 3.01, 66.97, 3.87, 2495.75)),
        )
    ),
    PrintedTable(
        "Table 1", "imagenet", "gaussian", "resnet18", 1_281_167,
        {
            name: Printed(a_auc, None, a_last, None, 93_000 if name == "al-sar" else 112_000)
            for name, a_auc, a_last in (
                ("ewc", 20.05, 32.55), ("er", 20.01, 32.60), ("mir", 7.45, 17.04), ("remind", 15.58, 22.42),
                ("der++", 23.51, 29.82), ("ocs", 6.90, 19.57), ("lider-x-der", 27.65, 34.66), ("x-der", 27.46, 34.47),
                ("memo", 11.15, 19.98), ("cama", 7.94, 17.44), ("ccl-dc", 19.70, 32.12), ("al-sar", 33.24, 35.02),
            )
        },
    ),
    PrintedTable(
        "Table 1", "clear10", "domain", "resnet32", 30_000,
        {
            name: Printed(a_auc, auc_sd, a_last, last_sd, 598 if name == "al-sar" else 716)
            for name, a_auc, auc_sd, a_last, last_sd in (
                ("ewc", 62.40, 0.17, 71.25, 1.29), ("er", 64.00, 0.06, 72.28, 1.15), ("mir", 62.29, 0.17, 70.52, 1.13),
                ("remind", 62.64, 0.04, 70.68, 0.90), ("der++", 61.30, 0.77, 71.52, 1.02),
                ("ocs", 58.69, 0.25, 68.69, 1.21), ("lider-x-der", 58.36, 0.75, 69.16, 1.21),
                ("x-der", 58.19, 0.23, 69.70, 0.97), ("memo", 60.29, 0.31, 68.69, 1.21),
                ("cama", 60.97, 0.52, 71.66, 1.18), ("ccl-dc", 61.08, 0.55, 71.25, 0.82),
                ("al-sar", 67.61, 0.45, 74.36, 0.80),
            )
        },
    ),
    PrintedTable(
        "Table 1", "clear100", "domain", "resnet32", 110_000,
        {
            name: Printed(a_auc, auc_sd, a_last, last_sd, 4_059 if name == "al-sar" else 5_250)
            for name, a_auc, auc_sd, a_last, last_sd in (
                ("ewc", 29.62, 0.44, 40.36, 1.34), ("er", 31.56, 0.42, 44.90, 0.74), ("mir", 23.24, 0.14, 34.92, 1.16),
                ("remind", 26.76, 0.30, 30.99, 0.55), ("der++", 25.83, 0.43, 39.89, 0.89),
                ("ocs", 15.24, 1.27, 22.52, 2.02), ("lider-x-der", 28.75, 0.28, 39.92, 1.29),
                ("x-der", 23.01, 0.15, 33.70, 0.70), ("memo", 20.33, 0.28, 25.53, 0.92),
                ("cama", 26.27, 0.37, 39.42, 0.67), ("ccl-dc", 23.81, 0.32, 35.07, 0.67),
                ("al-sar", 38.65, 0.30, 47.56, 0.37),
            )
        },
    ),
    *(
        PrintedTable(f"Table {number}", dataset, "domain", "llava-1.5-7b", samples,
                     {"vanilla": Printed(*vanilla), "al": Printed(*al)})
        for number, dataset, samples, vanilla, al in (
            (3, "bongard-hoi-pn", 7_208, (68.01, 0.47, 65.39, 0.69, 1578.02), (68.62, 1.77, 64.59, 0.77, 1431.27)),
            (3, "bongard-openworld-pn", 1_158,
             (56.71, 1.53, 56.14, 2.55, 2959.61), (55.34, 1.55, 57.17, 2.61, 2722.23)),
            (9, "bongard-hoi-ca", 3_604, (74.46, 2.77, 72.41, 2.02, 788.35), (75.27, 2.15, 72.31, 3.26, 715.43)),
            (9, "bongard-openworld-ca", 193, (73.72, 0.49, 73.26, 0.56, 1478.78), (73.06, 1.15, 73.92, 2.51, 1401.28)),
        )
    ),
)  # fmt: skip
SHARES = {3: "quarter", 4: "quarter", 5: "half", 9: "half", 10: "whole", 16: "whole"}
"""of the layers, that so many blocks of ResNet-20 or ResNet-32 hold"""


def printed_for(config: Mapping[str, Any]) -> PrintedTable | None:
    """The paper's table for runs of this kind: the same data set and stream, the same kind of network, and where it has
    several, the nearest iterations."""
    kind = _kind(str(config.get("model", "")))
    given = str(config["dataset"]).partition("?")[0], config["stream"]
    found = [table for table in PRINTED if (table.dataset, table.stream) == given and _kind(table.model) == kind]
    iterations = config.get("iterations") or 1.0
    return min(found, key=lambda table: abs(table.iterations - iterations), default=None)


def _kind(model: str) -> str:
    """ResNets of any depth are one; plain CNNs are told apart by theirs."""
    plain = re.match(r"cnn\d+", model)
    return plain[0] if plain else re.split(r"[\d-]", model)[0]


def printed_row(config: Mapping[str, Any]) -> Printed | None:
    """The paper's row for this method with its own parts, or with the part that the paper exchanged."""
    table = printed_for(config)
    settings = dict(config.get("settings") or {})
    if table is None or any(config.get(part) for part in ("retrieval", "codec")):
        return None
    name, freezing = str(config["method"]), config.get("freezing")
    if freezing:
        name += f" {freezing}"
        number = settings.pop("freezing.n", None) or settings.pop("freezing.n_max", None)
        if number is not None:
            name += f" {SHARES.get(int(number), '?')}"
    elif frequency := settings.pop("retrieval.frequency", None):
        name += f" {frequency}"
    return None if settings else table.rows.get(name)
