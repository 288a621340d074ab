"""A few threads for work that would make the loop wait."""

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
"""For syncs alone, so that nobody's acknowledgement waits behind other work: the rounds of the flusher, and one for
the metadata log."""


LOGIN_THREADS = 2
"""For hashing passwords alone: a user must not wait behind what other clients ask for."""


class ThreadWorkers:
    """The workers port over a few threads. Results come back on the loop, in the order in which jobs end.

    The threads take their jobs from a queue, and there is no future for each: of what a sync of one record takes of
    the processor, the hand-over is much.
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
            # Nobody but `close` waits for its end.
            thread = Thread(target=self._serve, name=f"millpond-worker-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        later: Later[T] = Later()
        self._jobs.put((job, later))
        return later

    def _serve(self) -> None:
        while (taken := self._jobs.get()) is not None:
            self._work(*taken)
            # What it was about must not live on until the next one comes.
            del taken

    def _work(self, job: Callable[[], T], later: Later[T]) -> None:
        # It ends as the loop's own callback: what its reader raises reaches the loop's exception handler.
        try:
            result = job()
        except Exception as error:
            self._tell(later.fail, error)
        except BaseException as error:
            # It would end this thread, and the caller would wait for ever.
            self._tell(_raise, error)
        else:
            self._tell(later.finish, result)

    def _tell(self, callback: Callable[[Any], None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # The loop closed before its last job ended; there is nobody left to tell.
            if not self._loop.is_closed():
                raise

    def close(self) -> None:
        """Take no more jobs and wait for those that run. Their results still arrive if the loop runs on."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


def _raise(error: BaseException) -> None:
    raise error
