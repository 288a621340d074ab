"""Calls that may block inside librdkafka, made on a separate thread so that the caller can give up.

librdkafka may wait minutes, or forever, for an unreachable cluster, and Python runs no signal handler meanwhile. The
caller waits in short steps, so that signals are handled, and gives up at its deadline. An abandoned call keeps its
thread and its client until it returns.
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
    """The call did not return in time. It may still be running: abandon what it works on."""


class CallThread:
    """Runs calls one by one on a daemon thread, which never keeps the interpreter from exiting."""

    def __init__(self, name: str, deadline: Callable[[], float | None] = lambda: None) -> None:
        """`deadline` is called repeatedly while a call runs: a monotonic time, or None for no limit."""
        self._name = name
        self._deadline = deadline
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._lock = Lock()
        self._is_started = False
        self._is_closed = False
        self.is_abandoned = False
        """Whether a call overran. Only `submit` works from then on."""

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Queue the call."""
        outcome: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the thread {self._name} is closed")
            self._calls.put((lambda: function(*arguments), outcome))
            if not self._is_started:
                self._is_started = True
                # Not a ThreadPoolExecutor: the interpreter waits for its threads before it exits.
                Thread(target=self._serve, name=self._name, daemon=True).start()
        return outcome

    def run(self, function: Callable[..., T], *arguments: Any, timeout_s: float | None = None) -> T:
        """Make the call and wait for its result; CallOverrun at the deadline or timeout."""
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
        """End the thread after the queued calls."""
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
            # Do not keep the objects of the last call alive while waiting for the next.
            del job, call, outcome
