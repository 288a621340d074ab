"""Run handlers: on threads for plain functions, in tasks of one event loop for async ones.

A runner takes records until there are none, so that a free thread need not be woken for the next. All threads are
daemons: a handler that never returns must not keep the process alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from threading import Semaphore, Thread, current_thread
from typing import Protocol


class Runners(Protocol):
    def start_one(self) -> None: ...

    def is_inside(self) -> bool:
        """Whether the caller is a handler."""
        ...

    def end(self, timeout_s: float) -> None:
        """Take no further records; wait at most this long for running handlers."""
        ...


class Threads:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._commands: SimpleQueue[bool] = SimpleQueue()
        """True for each runner to start, False for each thread to end."""
        self._idle = Semaphore(0)
        self._threads: list[Thread] = []

    def start_one(self) -> None:
        self._commands.put(True)
        if not self._idle.acquire(blocking=False):
            thread = Thread(target=self._serve, name=f"millpond-handler-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def is_inside(self) -> bool:
        return current_thread() in self._threads

    def end(self, timeout_s: float) -> None:
        for _ in self._threads:
            self._commands.put(False)

    def _serve(self) -> None:
        while self._commands.get():
            self._work()
            self._idle.release()


class Tasks:
    def __init__(self, work: Callable[[], Awaitable[None]], fail: Callable[[BaseException], None]) -> None:
        self._work = work
        self._fail = fail
        self._ending = False
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Future[None]] = set()
        self._thread = Thread(target=self._run, name="millpond-handlers", daemon=True)
        self._thread.start()

    def start_one(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def is_inside(self) -> bool:
        return current_thread() is self._thread

    def end(self, timeout_s: float) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout_s)

    def _stop(self) -> None:
        self._ending = True
        self._loop.stop()

    def _begin(self) -> None:
        task = asyncio.ensure_future(self._work(), loop=self._loop)
        # The loop itself keeps only weak references.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        while not self._ending:
            try:
                self._loop.run_forever()
            except BaseException as error:
                # A task that a handler started called sys.exit(), which asyncio raises through the loop.
                self._fail(error)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait(self._tasks))
        self._loop.close()
