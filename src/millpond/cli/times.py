"""Moments and lengths of time as people write them, and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NAMES: Final = {
    "sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d", "week": "w",
}  # fmt: skip
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def read_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of an ISO time (local unless it names a zone) or of a span ago, as `1h30m ago`."""
    span_ms = read_span(text.lower().removesuffix("ago"))
    if span_ms is not None:
        return now_ms - span_ms
    # 1 ms short of the moment would show the record before it.
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def read_span(text: str) -> int | None:
    """Milliseconds of a length of time such as `5m`, `1h30m` or `2 days`; None if it is none."""
    text = text.strip()
    total = 0.0
    position = 0
    while position < len(text):
        part = _SPAN.match(text, position)
        if part is None:
            return None
        word = part[2]
        unit = _UNIT_MS.get(word) or _UNIT_MS.get(_NAMES.get(word.removesuffix("s"), ""))
        if unit is None:
            return None
        total += float(part[1]) * unit
        position = part.end()
    return round(total) if text else None


def show_time(time_ms: int) -> str:
    """The moment in UTC, to the millisecond; a dash where there is none."""
    if time_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    # Microseconds come out of a float: the milliseconds are exact in the integer.
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def show_span(span_ms: float) -> str:
    """A length of time as people say it, with its two largest units: 340ms, 1.2s, 2m 14s, 3h 5m, 2d 4h."""
    whole_ms = round(span_ms)
    if whole_ms < 1000:
        return f"{whole_ms}ms"
    if whole_ms < 9_950:
        return f"{whole_ms / 1000:.1f}s"
    seconds = round(whole_ms / 1000)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return _two(seconds, 60, "m", 1, "s")
    if seconds < 86_400:
        return _two(seconds, 3600, "h", 60, "m")
    return _two(seconds, 86_400, "d", 3600, "h")


def _two(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_name}" + (f" {rest}{small_name}" if rest else "")
