"""Computing that any stranger can ask for (hashing a password, a handshake of TLS): off the loop, few jobs at a time,
and each address in its turn.

A connection has at most one job here, so the queue is as long as there are connections that begin. Whoever opens
many of them waits for himself: somebody from another address comes next. A job computes and does not wait for
anybody else: the others behind it would wait, too.
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
        """By address, in the order of their turns."""
        self._running = 0

    def __len__(self) -> int:
        return sum(len(jobs) for jobs in self._waiting.values())

    def run(self, host: str, job: Callable[[], T]) -> Later[T]:
        """What the job returns or raises. One that nobody waits for any more is not done."""
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
                # Its next turn comes after all others.
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
