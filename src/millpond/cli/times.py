"""Parses and formats times and durations."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def show_time(time_ms: int) -> str:
    """The time in UTC, to the millisecond; a dash if there is none."""
    if time_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    # Microseconds come from a float: only the integer has exact milliseconds.
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def show_span(span_ms: float) -> str:
    """A duration with its two largest units: 340ms, 1.2s, 2m 14s, 3h 5m, 2d 4h."""
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
