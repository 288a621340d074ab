"""Calls that may block inside librdkafka, made on a thread of their own so that a stop can be bounded.

librdkafka waits for a cluster that is away for minutes, or for good, and Python runs no signal handler meanwhile. The
caller here waits in short steps: it hears signals, and gives up when its deadline has passed. A call that was given
up keeps its thread and its client until it returns; only `run_later` may follow it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, TypeVar

from millpond.client.errors import Timeout

T = TypeVar("T")

LOOK_SECONDS: Final = 0.1


class Aside:
    def __init__(self, deadline: Callable[[], float | None]) -> None:
        """`deadline` is asked again and again: None while there is none, else a time of the monotonic clock."""
        self._deadline = deadline
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: Thread | None = None
        self.is_abandoned = False
        """Whether a call was given up."""

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns or raises; Timeout when the deadline comes first."""
        if self.is_abandoned:
            raise Timeout("the cluster does not answer")
        if self._thread is None:
            # A daemon: the process can end while librdkafka still waits.
            self._thread = Thread(target=self._serve, name="millpond-aside", daemon=True)
            self._thread.start()
        call = _Call(function, arguments)
        self._calls.put(call)
        try:
            while not call.done.wait(LOOK_SECONDS):
                deadline = self._deadline()
                if deadline is not None and time.monotonic() > deadline and not call.done.is_set():
                    raise Timeout("the cluster does not answer")
        except BaseException:
            self.is_abandoned = not call.done.is_set()
            raise
        if call.failure is not None:
            raise call.failure
        result: T = call.result
        return result

    def run_later(self, function: Callable[[], Any]) -> None:
        """Make this call once the one that was given up returns; nobody waits for it."""
        self._calls.put(_Call(function, ()))

    def end(self) -> None:
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()


class _Call:
    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self.done = Event()
        self.result: Any = None
        self.failure: BaseException | None = None

    def make(self) -> None:
        try:
            self.result = self._function(*self._arguments)
        except BaseException as failure:
            self.failure = failure
        self.done.set()
