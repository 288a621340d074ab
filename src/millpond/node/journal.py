"""What an operator should know, one line an event on standard error: the time, the event, its facts.

An event that comes again and again (a client that speaks another protocol knocks many times a second) is told in full
for a while, and then once a second with the number of those left out: a journal that nobody reads must not fill up
and hold the node.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

LINES_AT_ONCE_MAX: Final = 200
"""Of one event; after these, one line a second."""


@dataclass(slots=True)
class _Allowance:
    """Lines that may still be told of one event. It grows by one a second."""

    lines: float
    since: float
    left_out: int = 0


class LineJournal:
    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._allowances: dict[str, _Allowance] = {}

    def __call__(self, event: str, **facts: object) -> None:
        now = self._clock()
        allowance = self._allowances.setdefault(event, _Allowance(LINES_AT_ONCE_MAX, now))
        allowance.lines = min(LINES_AT_ONCE_MAX, allowance.lines + now - allowance.since)
        allowance.since = now
        if allowance.lines < 1:
            allowance.left_out += 1
            return
        allowance.lines -= 1
        if allowance.left_out:
            facts["left_out_before"] = allowance.left_out
            allowance.left_out = 0
        told = "  ".join(f"{name}={value}" for name, value in facts.items())
        print(f"{time.strftime('%H:%M:%S')}  {event}  {told}".rstrip(), file=self._out, flush=True)
