"""Calls into librdkafka that may never return, bounded by a deadline of our own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class CallOverrun(Exception):
    """The call did not return in time. It may still be running, so whatever it works on must be abandoned."""


class GuardedCalls:
    """Runs calls one after the other on a thread of its own. After a `CallOverrun` it is of no further use."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        # A daemon: the interpreter must be able to exit while a call hangs.
        Thread(target=self._serve, name="millpond-guarded-calls", daemon=True).start()

    def run(self, call: Callable[[], T], timeout_s: float) -> T:
        """Return what the call returns and raise what it raises."""
        outcome: Future[T] = Future()
        self._calls.put((call, outcome))
        try:
            return outcome.result(timeout_s)
        except TimeoutError:
            self.close()
            raise CallOverrun(f"no return within {timeout_s:g} s") from None

    def close(self) -> None:
        """End the thread once its present call has returned."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (job := self._calls.get()) is not None:
            call, outcome = job
            try:
                outcome.set_result(call())
            except BaseException as fault:
                outcome.set_exception(fault)
            # A thread that waits for its next call must not keep the objects of the last one alive.
            del job, call, outcome
