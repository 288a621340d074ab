"""Where handlers run: threads for plain functions, tasks of one event loop for async ones.

A runner takes one record after the other until there is none, so that a free thread needs no waking for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Protocol


class Runners(Protocol):
    def start_one(self) -> None: ...

    def end(self, timeout_s: float) -> None:
        """Take no more; a handler that still runs is not waited for longer than that."""
        ...


class Threads:
    def __init__(self, work: Callable[[], None], concurrency: int) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="millpond-handler")

    def start_one(self) -> None:
        self._pool.submit(self._work)

    def end(self, timeout_s: float) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Tasks:
    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Future[None]] = set()
        self._thread = Thread(target=self._run, name="millpond-handlers", daemon=True)
        self._thread.start()

    def start_one(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def end(self, timeout_s: float) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def _begin(self) -> None:
        task = asyncio.ensure_future(self._work(), loop=self._loop)
        # The loop itself keeps only weak references.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait(self._tasks))
        self._loop.close()
