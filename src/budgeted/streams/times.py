"""Times of samples: numbers as they are, or dates, which are seconds of UTC where they name no zone."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

from budgeted.streams.dataset import DataError


class Times:
    """The times of a table: numbers as they are or dates as seconds, but not both, since no order is between them."""

    def __init__(self) -> None:
        self._kind = ""

    def seconds(self, value: Any, where: str) -> float | None:
        """None where there is no time."""
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        kind, moment = _moment(value, where)
        self._kind = self._kind or kind
        if kind != self._kind:
            raise DataError(
                f"{where}: the time {str(value)!r} is a {kind}, the first is a {self._kind}: write all alike"
            )
        return moment


def _moment(value: Any, where: str) -> tuple[str, float]:
    """What kind of time this is, and when; a date without a zone is of UTC, whatever the machine's is."""
    if isinstance(value, datetime):
        return "date", (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return "date", datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        try:
            return _moment(datetime.fromisoformat(str(value).strip()), where)
        except (ValueError, OverflowError):
            raise DataError(f"{where}: the time {value!r} is neither a number nor an ISO date: correct it") from None
    if not math.isfinite(number):
        raise DataError(f"{where}: the time {value!r} is not finite: correct it")
    return "number", number
