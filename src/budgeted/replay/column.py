"""What a slot of the memory holds, and what that costs in bytes.

Rule `real` counts every column. Rule `paper` leaves the label out: the paper's tables pay for pixels (3,072
bytes in CIFAR), logits and frequencies, never for labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from budgeted.budget.units import Rule
from budgeted.errors import BudgetedError

LABEL = "label"


@dataclass(frozen=True)
class Column:
    """One value kept for every slot."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    host: bool = False
    """Kept in host memory and read through numpy, whatever the device of the samples."""

    @property
    def nbytes(self) -> int:
        """Bytes of one slot."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check(self, value: torch.Tensor, who: str, batch: tuple[int, ...] = ()) -> None:
        """Refuse what could be kept only by bending it: a float as a byte, another shape."""
        if value.dtype != self.dtype or value.shape != (*batch, *self.shape):
            raise BudgetedError(
                f"{who} {self.dtype} of shape {(*batch, *self.shape)} as {self.name!r}, not {value.dtype} of shape "
                f"{tuple(value.shape)}: convert it first"
            )


def label_column(classes: int | None = None) -> Column:
    """The labels, in the smallest integer that tells `classes` apart; four bytes when nobody knows how
    many.
    """
    if classes is None or classes > 2**15:
        return Column(LABEL, (), torch.int32, host=True)
    return Column(LABEL, (), torch.uint8 if classes <= 2**8 else torch.int16, host=True)


def bytes_per_slot(columns: Iterable[Column], rule: Rule = "real") -> int:
    """What one slot costs: every column under rule `real`, all but the label under rule `paper`."""
    return sum(column.nbytes for column in columns if rule == "real" or column.name != LABEL)


def slots_for(nbytes: int, columns: Sequence[Column], rule: Rule = "real") -> int:
    """How many slots fit into `nbytes`."""
    slots = nbytes // bytes_per_slot(columns, rule)
    if slots < 1:
        need = bytes_per_slot(columns, rule)
        raise BudgetedError(f"{nbytes} bytes are left for the memory, one slot takes {need}: raise the byte budget")
    return slots
