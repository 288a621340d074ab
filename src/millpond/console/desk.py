"""Where questions to the cluster are answered: on a few threads, so that the server's loop never waits for a broker.

Everything is bounded: the threads, how many questions wait for one, and how many results are kept for a moment so
that many pages that look at the same thing cost the cluster one question. Looks that take many seconds, and say
themselves when to end, have threads of their own, so that quick questions never wait behind them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from millpond.base.errors import RemoteError
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError

THREADS: Final = 8
QUESTIONS_MAX: Final = 64
"""Under way and waiting together; one more is refused."""
LONG_THREADS: Final = 3
LONG_MAX: Final = 12
RECENT_MAX: Final = 256

READ_SECONDS: Final = 5.0
"""A cluster that is away is soon said to be; the page asks again."""
CHANGE_SECONDS: Final = 15.0

T = TypeVar("T")
Question = Callable[[Cluster], T]


class Busy(Exception):
    """Too much is asked at once."""

    def __str__(self) -> str:
        return "The console has too much to do: try again in a moment."


FAULTS: Final = (ClientError, RemoteError, Busy)
"""What a cluster, the way to it, or too many who ask can be at fault for; anything else is a bug of ours."""


class _Pool:
    """Threads, and how many questions may be under way on them or wait for one."""

    def __init__(self, threads: int, questions_max: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = threading.BoundedSemaphore(questions_max)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Busy if too many wait."""
        if not self._places.acquire(blocking=False):
            raise Busy
        # The place is free when the thread is, not when whoever asked has lost patience.
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self._places.release())
        return future

    def tidy(self, work: Callable[[], None]) -> None:
        """Something small that nobody waits for."""
        self._threads.submit(work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Recent:
    task: asyncio.Task[Any]
    done_at: float | None = None


class Lease:
    """A cluster client that is used for one question after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()

    def answer(self, question: Question[T]) -> T:
        with self._lock:
            return question(self._cluster)

    def close(self) -> None:
        with self._lock:
            self._cluster.close()


class Desk:
    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings` are those of a Kafka client."""
        patience_ms = str(round(CHANGE_SECONDS * 1000))
        timeouts = {"request.timeout.ms": patience_ms, "default.api.timeout.ms": patience_ms}
        self._settings = {"client.id": "millpond-console", **timeouts, **settings}
        # A wrong setting is said at once, not to the first who asks.
        self._free: list[Cluster] = [Cluster(self._settings)]
        self._lock = threading.Lock()
        self._quick = _Pool(THREADS, QUESTIONS_MAX, "desk")
        self._long = _Pool(LONG_THREADS, LONG_MAX, "long look")
        self._recent: dict[Hashable, _Recent] = {}

    async def ask(self, question: Question[T], seconds: float = READ_SECONDS, *, is_long: bool = False) -> T:
        """On a cluster client that tries for so long where the reason is one that passes."""
        pool = self._long if is_long else self._quick
        return await asyncio.wrap_future(pool.submit(lambda: self._answer(question, seconds)))

    async def change(self, question: Question[T]) -> T:
        """Ask for something that changes the cluster: what was known before is not shown again."""
        try:
            return await self.ask(question, CHANGE_SECONDS)
        finally:
            self.forget()

    def forget(self) -> None:
        """Something has changed: whatever is asked from now on is asked anew."""
        self._recent.clear()

    async def recent(self, key: Hashable, seconds: float, question: Question[T], *, is_long: bool = False) -> T:
        """The result, which may be so many seconds old; all who ask meanwhile share one question."""
        loop = asyncio.get_running_loop()
        kept = self._recent.get(key)
        if kept is None or (kept.done_at is not None and loop.time() - kept.done_at >= seconds):
            while len(self._recent) >= RECENT_MAX:
                self._recent.pop(next(iter(self._recent)))
            kept = self._recent[key] = _Recent(loop.create_task(self.ask(question, is_long=is_long)))
            kept.task.add_done_callback(lambda task: self._note(kept, task, loop.time()))
        # Whoever goes away must not take the result from the others.
        return cast(T, await asyncio.shield(kept.task))

    def client(self) -> Cluster:
        """A cluster client for work on a thread of its own."""
        return Cluster(self._settings)

    def lease(self) -> Lease:
        """A cluster client for whoever keeps something between questions; give it back."""
        return Lease(self.client())

    async def on(self, lease: Lease, question: Question[T]) -> T:
        return await self.ask(lambda _: lease.answer(question))

    def give_back(self, lease: Lease) -> None:
        # On a thread: a question that its asker has left may still be under way.
        self._quick.tidy(lease.close)

    def close(self) -> None:
        self._quick.close()
        self._long.close()

    def _note(self, kept: _Recent, task: asyncio.Task[Any], now: float) -> None:
        # A failure is not kept: the next question may find the cluster well again.
        failed = task.cancelled() or task.exception() is not None
        kept.done_at = float("-inf") if failed else now

    def _answer(self, question: Question[T], seconds: float) -> T:
        with self._lock:
            cluster = self._free.pop() if self._free else Cluster(self._settings)
        cluster.patience_seconds = seconds
        try:
            return question(cluster)
        except Exception:
            # What is left of a conversation that went wrong or was broken off must not be taken for the next result.
            cluster.close()
            raise
        finally:
            with self._lock:
                self._free.append(cluster)
