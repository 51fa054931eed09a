"""Checks of values inside a traced forward: `torch._check_tensor_all` and its kin.

A model may state what must hold of its data (LLaVA: as many picture features as places for them) and have torch look.
A trace has no data to look at, and what such a check asserts is true of every batch that can be trained on: in the
trace it is taken as true. The check itself stays where data are: switched off there, a batch with five pictures for
four places would run, and one sample would see another's picture.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


@contextlib.contextmanager
def taken_as_true() -> Iterator[None]:
    """Inside, a check of a tensor without data holds; in this thread, that is. One at a time may be inside."""
    mine = threading.get_ident()
    original: Callable[..., None] = torch._check_tensor_all_with

    def check(error_type: type[Exception], cond: Any, message: Any = None) -> None:
        if threading.get_ident() == mine and isinstance(cond, Tensor) and isinstance(cond, FakeTensor):
            torch.ops.aten._is_all_true(cond)  # what the check runs, so that it has its price
        else:
            original(error_type, cond, message)

    torch._check_tensor_all_with = check
    try:
        yield
    finally:
        torch._check_tensor_all_with = original
