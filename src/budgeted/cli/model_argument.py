"""An input shape from the command line."""

from __future__ import annotations

from budgeted.errors import BudgetedError

MOST_DIGITS = 5


def parse_shape(text: str) -> tuple[int, int, int]:
    """Channels, height and width as in 3x32x32."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() and len(part) <= MOST_DIGITS and int(part) > 0 for part in parts):
        raise BudgetedError(
            f"cannot read {text[:100]!r} as an input shape: write channels x height x width, as in 3x32x32"
        )
    channels, height, width = (int(part) for part in parts)
    return channels, height, width
