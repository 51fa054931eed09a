"""Gradient checkpointing as it shows in a trace: which operators the backward pass runs a second time.

Non-reentrant checkpointing keeps nothing of a region but its inputs. The first gradient that needs a tensor from there
runs the region's forward again, up to the last tensor that autograd saves. So every operator is noted with how many
tensors the region had saved when it ran: those that come before the last one are run again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import checkpoint

from budgeted.budget.refusals import UnpricedBackward


class CheckpointedRegions:
    """Notes for every operator of a trace the region that it lies in."""

    def __init__(self) -> None:
        self._frames: list[Any] = []
        self._noted: list[tuple[int | None, int]] = []  # per operator: its region, and tensors saved there before it

    def enter(self) -> int | None:
        """Called as each operator runs: the number of its region, None outside of any."""
        frame = _frame()
        if frame is None:
            self._noted.append((None, 0))
            return None
        number = next((i for i, known in enumerate(self._frames) if known is frame), len(self._frames))
        if number == len(self._frames):
            if any(not known.forward_completed for known in self._frames):
                raise UnpricedBackward(
                    "the model nests one checkpoint() in another, whose recomputations have no price: keep one of them"
                )
            if _is_selective(frame):
                raise UnpricedBackward(
                    "the model uses selective checkpointing (context_fn), whose recomputation has no price: "
                    "use checkpoint() without context_fn"
                )
            self._frames.append(frame)
        self._noted.append((number, len(frame.weak_holders)))
        return number

    def recomputed(self) -> list[bool]:
        """Per operator: is it run again when the backward reaches its region?"""
        return [region is not None and self._again(region, before) for region, before in self._noted]

    def _again(self, region: int, saved_before: int) -> bool:
        frame = self._frames[region]
        return not frame.early_stop or saved_before < len(frame.weak_holders)


def _frame() -> Any:
    """What torch keeps about the checkpointed region that is running; None outside of any."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None or "checkpoint" not in getattr(hooks[0], "__module__", ""):
        return None
    frame = _closed_over(hooks[0], "frame")
    if not all(hasattr(frame, name) for name in ("weak_holders", "early_stop", "forward_completed")):
        raise UnpricedBackward(
            "the model uses gradient checkpointing in a way that this version of torch does not show: "
            "train it without checkpoint()"
        )
    return frame


def _is_selective(frame: Any) -> bool:
    context = _closed_over(frame.recompute_fn, "recompute_context")
    return context is not None and not isinstance(context, contextlib.nullcontext)


def _closed_over(function: Any, name: str) -> Any:
    """A variable of the function around `function`; None if it has none of that name or no value."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        return cells[name].cell_contents if name in cells else None
    except ValueError:  # a cell without a value
        return None


@contextlib.contextmanager
def refusing_reentrant() -> Iterator[None]:
    """Inside, a reentrant checkpoint raises: a backward towards chosen parameters does not see into it.

    In this thread, that is; others go on as they are. One at a time may be inside.
    """
    mine, function = threading.get_ident(), checkpoint.CheckpointFunction
    kept = function.__dict__.get("apply")
    original: Callable[..., Any] = function.apply

    def refuse(*args: Any) -> Any:
        if threading.get_ident() != mine:
            return original(*args)
        raise UnpricedBackward(
            "the model uses reentrant gradient checkpointing, which silently loses gradients when a part is frozen: "
            "use checkpoint(..., use_reentrant=False)"
        )

    function.apply = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        if kept is None:
            del function.apply
        else:
            function.apply = kept  # type: ignore[method-assign]
