"""Ctrl-C as a flag, which is checked where it is safe to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NAP_SECONDS: Final = 0.05


class Stop:
    """Whether a stop was requested. A plain flag: the interrupted code could hold a lock."""

    def __init__(self) -> None:
        self.is_requested = False

    def request(self, *_: object) -> None:
        self.is_requested = True

    def wait(self, seconds: float) -> None:
        """Sleeps this long, or until a stop is requested."""
        until = time.monotonic() + seconds
        while not self.is_requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, NAP_SECONDS))


@contextmanager
def stop_on(*numbers: signal.Signals) -> Iterator[Stop]:
    """Within it, these signals only request a stop."""
    stop = Stop()
    before = {number: signal.signal(number, stop.request) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
