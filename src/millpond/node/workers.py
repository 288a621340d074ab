"""A few threads for work that would block the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from millpond.base.later import Later

T = TypeVar("T")

THREADS = 4
"""Enough to overlap cold reads with compaction and removal; more would only queue at the same disk."""

SYNC_THREADS = 3
"""For syncs only, so that acknowledgements never wait behind other work: the flusher's rounds, and one for the
metadata log."""


LOGIN_THREADS = 2
"""For password hashing only: logins must not wait behind other clients' work."""


class ThreadWorkers:
    """The workers port over a few threads. Results arrive on the loop, in the order in which jobs end.

    Threads take jobs from a queue, without a future for each: for the sync of one record the hand-over is a large
    part of the CPU time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS) -> None:
        self._loop = loop
        self._threads_max = threads
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Later[Any]] | None] = SimpleQueue()
        self._closed = False

    def run(self, job: Callable[[], T]) -> Later[T]:
        if self._closed:
            raise RuntimeError("these workers are closed")
        if len(self._threads) < self._threads_max:
            # Only `close` waits for its end.
            thread = Thread(target=self._serve, name=f"millpond-worker-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        later: Later[T] = Later()
        self._jobs.put((job, later))
        return later

    def _serve(self) -> None:
        while (taken := self._jobs.get()) is not None:
            self._work(*taken)
            # The job must not be kept alive until the next one comes.
            del taken

    def _work(self, job: Callable[[], T], later: Later[T]) -> None:
        # It ends as a loop callback: what its reader raises reaches the loop's exception handler.
        try:
            result = job()
        except Exception as error:
            self._tell(later.fail, error)
        except BaseException as error:
            # Otherwise it would end this thread, and the caller would wait forever.
            self._tell(_raise, error)
        else:
            self._tell(later.finish, result)

    def _tell(self, callback: Callable[[Any], None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # The loop may have closed before its last job ended.
            if not self._loop.is_closed():
                raise

    def close(self) -> None:
        """Accept no more jobs and wait for running ones. Their results still arrive if the loop continues."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


def _raise(error: BaseException) -> None:
    raise error
