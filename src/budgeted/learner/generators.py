"""Named random generators: everything random in a run draws from one of these, and from nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

NAMES = ("selection", "retrieval", "augmentation", "head", "technique")


class Generators:
    """One generator per purpose, all from one seed; drawing from one never moves another."""

    def __init__(self, seed: int) -> None:
        self._by_name = {
            name: np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
            for name in NAMES
        }

    def __getitem__(self, name: str) -> np.random.Generator:
        return self._by_name[name]

    def state(self) -> dict[str, Any]:
        """Strings and integers, ready for JSON."""
        return {name: generator.bit_generator.state for name, generator in self._by_name.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, generator in self._by_name.items():
            if name in state:  # a run saved before this purpose was there has never drawn from it
                generator.bit_generator.state = state[name]
