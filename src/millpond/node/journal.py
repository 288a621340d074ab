"""What an operator should know, one line an event on standard error: the time, the event, its facts."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class LineJournal:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr

    def __call__(self, event: str, **facts: object) -> None:
        told = "  ".join(f"{name}={value}" for name, value in facts.items())
        print(f"{time.strftime('%H:%M:%S')}  {event}  {told}".rstrip(), file=self._out, flush=True)
