"""Ctrl-C as a wish: it is noted, and looked at where it does no harm to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NAP_SECONDS: Final = 0.05


class Stop:
    """Whether somebody asked to stop. A plain flag: a lock could be held by the code that the signal interrupts."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, *_: object) -> None:
        self.is_asked = True

    def wait(self, seconds: float) -> None:
        """So long, or until somebody asks."""
        until = time.monotonic() + seconds
        while not self.is_asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, NAP_SECONDS))


@contextmanager
def noted(*numbers: signal.Signals) -> Iterator[Stop]:
    """While it lasts, these signals only ask to stop."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
