"""Stop a run: by a signal or by its caller. The second signal exits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
AT_ONCE: Final = 130
"""The exit code after a second signal."""


class StopRequest:
    """Requests a graceful stop."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._before_exit: Callable[[], None] = lambda: None

    def request(self) -> None:
        self._requested.set()

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for the request, at most this long."""
        self._requested.wait(seconds)

    @contextmanager
    def listening(self, before_exit: Callable[[], None]) -> Iterator[None]:
        """Treat SIGINT and SIGTERM as stop requests. `last_words` are printed before the second one exits."""
        self._before_exit = before_exit
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self.listen()
        try:
            yield
        finally:
            if _may_listen():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def listen(self) -> None:
        if _may_listen():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only set a flag: an exception inside a call to Spark could be lost.
        if not self._requested.is_set():
            self._requested.set()
            return
        try:
            self._before_exit()
        finally:
            # Java exits with us: it watches our pipe.
            os._exit(AT_ONCE)


def _may_listen() -> bool:
    return threading.current_thread() is threading.main_thread()
