"""A queue for computation that unauthenticated clients can cause (password hashing, TLS handshakes): off the loop,
a few jobs at a time, round-robin by address.

A connection has at most one job here, so the number of new connections bounds the queue. A client that opens many
connections only delays itself: the next job is from another address. Jobs must not block, because the jobs behind
them would be blocked too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from millpond.base.later import Later
from millpond.base.ports import Workers

T = TypeVar("T")

AT_ONCE_MAX: Final = 2
"""The other workers are for the disk."""


class FairQueue:
    def __init__(self, workers: Workers, at_once_max: int = AT_ONCE_MAX) -> None:
        self._workers = workers
        self._at_once_max = at_once_max
        self._waiting: dict[str, deque[tuple[Callable[[], Any], Later[Any]]]] = {}
        """Jobs by address, next address first."""
        self._running = 0

    def __len__(self) -> int:
        return sum(len(jobs) for jobs in self._waiting.values())

    def run(self, host: str, job: Callable[[], T]) -> Later[T]:
        """The job's result or exception. A job whose result was cancelled before its turn is skipped."""
        result: Later[T] = Later()
        self._waiting.setdefault(host, deque()).append((job, result))
        self._go_on()
        return result

    def _go_on(self) -> None:
        while self._waiting and self._running < self._at_once_max:
            host, jobs = next(iter(self._waiting.items()))
            del self._waiting[host]
            job, result = jobs.popleft()
            if jobs:
                # Reinserted last: its next turn comes after all other addresses.
                self._waiting[host] = jobs
            if not result.ended:
                self._begin(job, result)

    def _begin(self, job: Callable[[], T], result: Later[T]) -> None:
        self._running += 1

        def finish(value: T) -> None:
            self._end()
            result.finish(value)

        def fail(failure: Exception) -> None:
            self._end()
            result.fail(failure)

        self._workers.run(job).then(finish, fail)

    def _end(self) -> None:
        self._running -= 1
        self._go_on()
