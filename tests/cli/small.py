"""Runs of a fraction of a second, by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QUICK = ["--model", "mlp", "--limit", "40", "--batch-size", "4", "--eval-every", "10", "--eval-samples", "50"]
MEMORY = ["--slots", "20"]


def summaries(folder: Path, method: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{method}-{seed}" / "summary.json").read_text()) for seed in (1, 2)]
