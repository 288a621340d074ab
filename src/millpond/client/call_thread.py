"""Calls that may block inside librdkafka, made on a thread of their own so that their caller can give up.

librdkafka may wait minutes, or forever, for a cluster that is away, and Python runs no signal handler meanwhile. The
caller here waits in short steps, so that it hears signals, and gives up at its deadline. A call that was given up
keeps its thread and its client until it returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from millpond.client.errors import Timeout

T = TypeVar("T")

LOOK_SECONDS: Final = 0.1


class CallOverrun(Timeout):
    """The call did not return in time. It may still be running: what it works on must be abandoned."""


class CallThread:
    """Runs calls one after the other on a daemon thread, which never keeps the interpreter from exiting."""

    def __init__(self, name: str, deadline: Callable[[], float | None] = lambda: None) -> None:
        """`deadline` is asked repeatedly during a call: a time of the monotonic clock, or None for no limit."""
        self._name = name
        self._deadline = deadline
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._lock = Lock()
        self._is_started = False
        self._is_closed = False
        self.is_abandoned = False
        """Whether a call was given up. Only `submit` is possible from then on."""

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Make this call after those submitted before."""
        outcome: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the thread {self._name} is closed")
            self._calls.put((lambda: function(*arguments), outcome))
            if not self._is_started:
                self._is_started = True
                # Not a ThreadPoolExecutor: the interpreter waits for the threads of those before it exits.
                Thread(target=self._serve, name=self._name, daemon=True).start()
        return outcome

    def run(self, function: Callable[..., T], *arguments: Any, timeout_s: float | None = None) -> T:
        """Return what the call returns and raise what it raises; CallOverrun at the deadline or timeout."""
        if self.is_abandoned:
            raise CallOverrun("the cluster does not answer")
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        outcome = self.submit(function, *arguments)
        try:
            while True:
                try:
                    return outcome.result(LOOK_SECONDS if timeout_s is None else min(LOOK_SECONDS, timeout_s))
                except TimeoutError:
                    if outcome.done():
                        raise
                now, deadline = time.monotonic(), self._deadline()
                if limit is not None and now > limit:
                    raise CallOverrun(f"no return within {timeout_s:g} s")
                if deadline is not None and now > deadline:
                    raise CallOverrun("the cluster does not answer")
        except BaseException:
            self.is_abandoned = not outcome.done()
            raise

    def close(self) -> None:
        """End the thread once it has made its calls."""
        with self._lock:
            self._is_closed = True
            self._calls.put(None)

    def _serve(self) -> None:
        while (job := self._calls.get()) is not None:
            call, outcome = job
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(call())
                except BaseException as fault:
                    outcome.set_exception(fault)
            # A thread that waits for its next call must not keep the objects of the last one alive.
            del job, call, outcome
