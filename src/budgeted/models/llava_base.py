"""LLaVA with adapters by name: the base that it starts from, and where the tiny one's base lies once it was made.

The large one starts from published weights. The tiny one has none, so its base is pretrained here, once: it lies in
the user's cache under a digest of everything that it was made from, and every run starts from the same one.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from budgeted.errors import BudgetedError
from budgeted.models.llava import SHAPES, llava
from budgeted.models.llava_lora import PUBLISHED, SMALL, said_otherwise, with_lora
from budgeted.models.llava_words import processor_of

MADE = "made.json"
"""what a base was made from and what that cost, in its folder"""
_FORMAT = 1  # another one where the way in which a base is made changes


@dataclass(frozen=True)
class Pretraining:
    """How the tiny LLaVA is pretrained: on known concepts of the drawn Bongard, all of its weights."""

    concepts: int = 150
    """steps on concept questions alone: what pictures share is learned first"""
    both: int = 450
    """steps on questions of either kind; twice as many leave little of P/N to be learned from the stream"""
    batch: int = 16
    rate: float = 2e-3
    seed: int = 1
    world: int = 1
    """seed of the drawn problems"""

    @property
    def digest(self) -> str:
        parts = {"format": _FORMAT, "shape": asdict(SHAPES["llava-tiny"]), **asdict(self)}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def folder(self) -> Path:
        """Where its base lies, or will."""
        return models_dir() / f"llava-tiny-{self.digest[:16]}"


def models_dir() -> Path:
    """Where bases lie: $BUDGETED_MODELS, or a folder in the user's cache."""
    if chosen := os.environ.get("BUDGETED_MODELS"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "budgeted" / "models"


def base_missing(name: str) -> bool:
    """Whether this model, by its name, starts from a base that was not made yet."""
    return name.partition("?")[0] == "llava-tiny" and "@" not in name and not (Pretraining().folder / MADE).is_file()


def adapted_llava(name: str, seed: int, folder: Path | None, said: str = "") -> nn.Module:
    """The named LLaVA with LoRA on its language model, drawn from `seed`; it has its `processor` with it.

    said: what is to be otherwise of the adapters, such as rank=4&projector=false.
    """
    adapters = said_otherwise(PUBLISHED if SHAPES[name].hub else SMALL, said)
    where: str | Path = name if folder is None else folder
    if folder is None and not SHAPES[name].hub:
        where = Pretraining().folder
        if base_missing(name):
            raise BudgetedError(
                f"{name} starts from a base that is pretrained once and is not in {where}: `budgeted run` makes it, "
                "and so does budgeted.problems.llava_base.make_base()"
            )
    base: Any = llava(where)
    processor = processor_of(where)
    base.config.use_cache = False  # of a training forward; `generate` has a setting of its own
    model: Any = with_lora(base, adapters, seed=seed)
    model.processor = processor
    model.made = _made(Path(where) / MADE)
    return model  # type: ignore[no-any-return]


def _made(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
