"""A few threads for work that would make the loop wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from millpond.base.later import Later

T = TypeVar("T")

THREADS = 4
"""Enough to overlap cold reads with compaction and removal; more would only queue at the same disk."""

SYNC_THREADS = 3
"""For syncs alone, so that nobody's acknowledgement waits behind other work: the rounds of the flusher, and one for
the metadata log."""


class ThreadWorkers:
    """The workers port over a thread pool. Results come back on the loop, in the order in which jobs end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="millpond-worker")

    def run(self, job: Callable[[], T]) -> Later[T]:
        later: Later[T] = Later()
        self._pool.submit(self._work, job, later)
        return later

    def _work(self, job: Callable[[], T], later: Later[T]) -> None:
        # It ends as the loop's own callback: what its reader raises reaches the loop's exception handler.
        try:
            result = job()
        except Exception as error:
            self._tell(later.fail, error)
        except BaseException as error:
            # The pool would keep it in a future that nobody reads, and the caller would wait for ever.
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
        self._pool.shutdown(wait=True)


def _raise(error: BaseException) -> None:
    raise error
