"""Durations and times in human notation."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_UNITS_MS: Final = {
    "millisecond": 1, "ms": 1, "second": 1000, "s": 1000, "sec": 1000, "minute": 60_000, "min": 60_000, "m": 60_000,
    "hour": 3_600_000, "h": 3_600_000, "day": 86_400_000, "d": 86_400_000, "week": 604_800_000, "w": 604_800_000,
}  # fmt: skip
_PART: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+)\s*")


def read_span(text: str) -> int | None:
    """Milliseconds of a duration such as `5m`, `1h30m` or `2 days`; None if it is not one."""
    text = text.strip()
    total, position = 0.0, 0
    while position < len(text):
        part = _PART.match(text, position)
        word = part[2] if part else ""
        unit = _UNITS_MS.get(word) or _UNITS_MS.get(word.removesuffix("s"))
        if part is None or unit is None:
            return None
        total += float(part[1]) * unit
        position = part.end()
    return round(total) if text else None


def read_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of an ISO time (local unless it names a zone) or of a time ago, as `1h30m ago`."""
    span_ms = read_span(text.lower().removesuffix("ago"))
    if span_ms is not None:
        return now_ms - span_ms
    # Rounded up: 1 ms too early would include the previous record.
    return round(datetime.fromisoformat(text).timestamp() * 1000)
