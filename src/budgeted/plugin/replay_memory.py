"""The episodic memory in the user's own loop: `memory.add(x, y)`, and it sizes itself by the first sample.

    memory = ReplayMemory(slots=500)
    memory.add(images, labels)       # a batch, or one sample with its label

Samples are kept as they come: uint8 images take a quarter of the bytes of float32 ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgeted.budget import parse_bytes
from budgeted.errors import BudgetedError, UnknownName
from budgeted.replay import (
    Column,
    GreedyBalanced,
    Memory,
    Reservoir,
    Retrieval,
    Selection,
    Unlimited,
    label_column,
    slots_for,
)

FORMAT = 1
_SAMPLE = "sample"
_SELECTIONS: dict[str, type[Selection]] = {"greedy-balanced": GreedyBalanced, "reservoir": Reservoir}


class ReplayMemory:
    """Samples with their labels, in so many slots or bytes; the selection decides which ones stay."""

    def __init__(
        self,
        slots: int | None = None,
        *,
        nbytes: int | str | None = None,
        classes: int | None = None,
        selection: str = "greedy-balanced",
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        slots: samples that it holds; neither slots nor bytes: all that come.
        nbytes: bytes that its slots may take, as in "2MiB"; labels and what the retrieval keeps are counted.
        classes: how many there will be at most, if it is known: labels then take a byte or two instead of four.
        selection: which samples stay when it is full: `greedy-balanced` or `reservoir`.
        """
        if slots is not None and nbytes is not None:
            raise BudgetedError("give the memory slots or nbytes, not both")
        if selection not in _SELECTIONS:
            raise UnknownName("selection", selection, _SELECTIONS)
        self._slots, self._classes, self._device = slots, classes, device
        self._nbytes = parse_bytes(nbytes) if isinstance(nbytes, str) else nbytes
        unlimited = slots is None and nbytes is None
        self.selection: Selection = Unlimited() if unlimited else _SELECTIONS[selection]()
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._memory: Memory | None = None
        self._retrieval: Retrieval | None = None

    def add(self, samples: Tensor, labels: Tensor | int) -> None:
        """Take a batch of samples with a label each, or one sample with its label."""
        if isinstance(labels, int) or labels.ndim == 0:
            samples, labels = samples.unsqueeze(0), torch.as_tensor([int(labels)])
        if labels.is_floating_point() or labels.ndim != 1 or len(labels) != len(samples):
            raise BudgetedError(
                f"labels of shape {tuple(labels.shape)} do not go with samples of shape {tuple(samples.shape)}: "
                "give one whole number for every sample"
            )
        if len(labels) == 0:
            return
        samples = samples.detach()
        memory = self._memory or self._make(tuple(samples.shape[1:]), samples.dtype)
        for sample, label in zip(samples.to(memory.device), labels.tolist(), strict=True):
            slot = self.selection.select(memory, label, self._generator)
            if slot is not None:
                memory.put(slot, sample, label)

    def __len__(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    @property
    def slots(self) -> Memory:
        """The memory itself, with its columns: there once a sample was added."""
        if self._memory is None:
            raise BudgetedError("the memory is empty: call memory.add(samples, labels) first")
        return self._memory

    def nbytes(self) -> int:
        """Bytes of all slots, under rule `real`."""
        return 0 if self._memory is None else self._memory.nbytes()

    def serve(self, retrieval: Retrieval) -> None:
        """Keep the columns that this retrieval needs, and tell it of every change."""
        if self._memory is not None and retrieval.columns:
            raise BudgetedError(
                "the memory holds samples already, without the columns of the retrieval: "
                "make the retrieval before the first add()"
            )
        self._retrieval = retrieval

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that it holds: tensors and plain numbers."""
        content = {} if self._memory is None else self._memory.state()
        return {
            "format": FORMAT,
            "memory": {name: tensor.clone() for name, tensor in content.items()},
            "selection": self.selection.state(),
            "generator": self._generator.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the memory that was saved; a retrieval on it is loaded after this."""
        if state.get("format") != FORMAT or not {"memory", "selection", "generator"} <= set(state):
            raise BudgetedError("this is no saved state of a ReplayMemory: give what its state_dict() returned")
        content = state["memory"]
        if content:
            samples = content[f"column.{_SAMPLE}"]
            memory = self._memory or self._make(tuple(samples.shape[1:]), samples.dtype)
            memory.load_state(content)
            if self._retrieval is not None:
                memory.watch(self._retrieval)
        self.selection.load_state(state["selection"])
        self._generator.bit_generator.state = state["generator"]

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Memory:
        extra = () if self._retrieval is None else self._retrieval.columns
        columns = (Column(_SAMPLE, shape, dtype), label_column(self._classes), *extra)
        slots = self._slots if self._nbytes is None else slots_for(self._nbytes, columns)
        self._memory = Memory(columns, slots, self._device)
        if self._retrieval is not None:
            self._memory.watch(self._retrieval)
        return self._memory
