"""Points in a topic as people name them: beginning, end, an offset, so many before the end, a moment."""

from __future__ import annotations

import re
import time
from typing import Final

import click

from millpond.admin.offsets import At, Beginning, End, Last, Point, Since
from millpond.cli.times import read_time

_OFFSET: Final = re.compile(r"-?[0-9]{1,19}")


def read_point(text: str, now_ms: int) -> Point:
    """What `--from` says. ValueError if it says nothing known."""
    text = text.strip()
    match text.lower():
        case "beginning" | "start" | "earliest":
            return Beginning()
        case "end" | "latest":
            return End()
    if _OFFSET.fullmatch(text):
        return Last(-int(text)) if text.startswith("-") else At(int(text))
    return Since(read_time(text, now_ms))


def read_moment(option: str, text: str, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 of a time that an option names."""
    try:
        return read_time(text, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text}: give a time as 2026-01-31T08:30 or a span as 5m.") from None
