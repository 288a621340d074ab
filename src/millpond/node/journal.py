"""What an operator should know, one line an event on standard error: the time, the event, its facts.

An event that comes again and again (a client that speaks another protocol knocks twenty times a second) is told a few
times a second and then counted: a journal that nobody reads must not fill up and hold the node.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

LINES_A_SECOND_MAX: Final = 10
"""Of one event."""


@dataclass(slots=True)
class _Flood:
    second: int
    told: int = 0
    held_back: int = 0


class LineJournal:
    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._floods: dict[str, _Flood] = {}

    def __call__(self, event: str, **facts: object) -> None:
        second = int(self._clock())
        flood = self._floods.setdefault(event, _Flood(second))
        if flood.second != second:
            if flood.held_back:
                self._tell(event, {"more of these": flood.held_back})
            self._floods[event] = flood = _Flood(second)
        if flood.told >= LINES_A_SECOND_MAX:
            flood.held_back += 1
            return
        flood.told += 1
        self._tell(event, facts)

    def _tell(self, event: str, facts: dict[str, object]) -> None:
        told = "  ".join(f"{name}={value}" for name, value in facts.items())
        print(f"{time.strftime('%H:%M:%S')}  {event}  {told}".rstrip(), file=self._out, flush=True)
