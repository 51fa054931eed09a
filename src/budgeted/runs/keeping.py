"""Which checkpoints of a run stay on disk: the newest two always, and as many as were asked for, spread over it.

The newest is what a killed run goes on from, the one before it is there in case the newest is damaged. Others serve
whoever replays the run: `budgeted verify` goes from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from budgeted.errors import BudgetedError

ALL = "all"
NEWEST = 2

Keep = int | str
"""so many, or "all" """


def refuse_bad_keep(keep: Keep) -> None:
    if isinstance(keep, str) and keep != ALL:
        raise BudgetedError(f"--keep-checkpoints is a number or {ALL!r}, got {keep!r}")
    if isinstance(keep, int) and keep < NEWEST:
        raise BudgetedError(f"--keep-checkpoints must be {NEWEST} or more, got {keep}")


def kept(arrived: Sequence[int], keep: Keep, samples: int) -> set[int]:
    """Of checkpoints after so many samples each, those that stay; `samples` is the length of the stream.

    The stream is cut into as many equal parts as there are places besides the newest two, and the first checkpoint in
    each part stays. What stays depends on nothing else, so a run that was killed and resumed keeps the same ones.
    """
    if not isinstance(keep, int):
        return set(arrived)
    newest_first = sorted(arrived, reverse=True)
    stay, parts = set(newest_first[:NEWEST]), keep - NEWEST
    first_in: dict[int, int] = {}
    for at in newest_first:
        if parts > 0:
            first_in[min(at * parts // max(1, samples), parts - 1)] = at
    return stay | set(first_in.values())
