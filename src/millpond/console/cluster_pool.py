"""Runs requests to the cluster on a few threads, so that the server's loop never waits for a broker.

Everything is bounded: the threads, the requests that wait for one, and the results that are cached briefly so that
many pages with the same content cost the cluster one request. Requests that take many seconds, and end by themselves,
have separate threads, so that quick ones never wait behind them.
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
CALLS_MAX: Final = 64
"""Limit of requests under way and waiting; more are refused."""
LONG_THREADS: Final = 3
LONG_MAX: Final = 12
RECENT_MAX: Final = 256

READ_SECONDS: Final = 5.0
"""A cluster that is down is reported soon; the page asks again."""
CHANGE_SECONDS: Final = 15.0

T = TypeVar("T")
ClusterCall = Callable[[Cluster], T]


class Busy(Exception):
    """Too many requests at once."""

    def __str__(self) -> str:
        return "The console is busy: try again in a moment."


FAULTS: Final = (ClientError, RemoteError, Busy)
"""Errors caused by the cluster, the network or too many requests; anything else is a bug."""


class _Pool:
    """A thread pool with a limit of running and waiting requests."""

    def __init__(self, threads: int, calls_max: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = threading.BoundedSemaphore(calls_max)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Raises Busy if too many wait."""
        if not self._places.acquire(blocking=False):
            raise Busy
        # The slot is free when the thread is, not when the client has given up.
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self._places.release())
        return future

    def tidy(self, work: Callable[[], None]) -> None:
        """Runs something small without waiting for it."""
        self._threads.submit(work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Recent:
    task: asyncio.Task[Any]
    done_at: float | None = None


class Lease:
    """A cluster client that is used for one request after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()

    def answer(self, call: ClusterCall[T]) -> T:
        with self._lock:
            return call(self._cluster)

    def close(self) -> None:
        with self._lock:
            self._cluster.close()


class ClusterPool:
    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings` are those of a Kafka client."""
        patience_ms = str(round(CHANGE_SECONDS * 1000))
        timeouts = {"request.timeout.ms": patience_ms, "default.api.timeout.ms": patience_ms}
        self._settings = {"client.id": "millpond-console", **timeouts, **settings}
        # A wrong setting fails at once, not on the first request.
        self._free: list[Cluster] = [Cluster(self._settings)]
        self._lock = threading.Lock()
        self._quick = _Pool(THREADS, CALLS_MAX, "cluster call")
        self._long = _Pool(LONG_THREADS, LONG_MAX, "long cluster call")
        self._recent: dict[Hashable, _Recent] = {}

    async def ask(self, call: ClusterCall[T], seconds: float = READ_SECONDS, *, is_long: bool = False) -> T:
        """Runs on a cluster client that retries transient errors for this long."""
        pool = self._long if is_long else self._quick
        return await asyncio.wrap_future(pool.submit(lambda: self._answer(call, seconds)))

    async def change(self, call: ClusterCall[T]) -> T:
        """Runs a change of the cluster, and drops cached results."""
        try:
            return await self.ask(call, CHANGE_SECONDS)
        finally:
            self.forget()

    def forget(self) -> None:
        """Drops cached results after a change."""
        self._recent.clear()

    async def recent(self, key: Hashable, seconds: float, call: ClusterCall[T], *, is_long: bool = False) -> T:
        """The result, which may be this many seconds old; concurrent callers share one request."""
        loop = asyncio.get_running_loop()
        kept = self._recent.get(key)
        if kept is None or (kept.done_at is not None and loop.time() - kept.done_at >= seconds):
            while len(self._recent) >= RECENT_MAX:
                self._recent.pop(next(iter(self._recent)))
            kept = self._recent[key] = _Recent(loop.create_task(self.ask(call, is_long=is_long)))
            kept.task.add_done_callback(lambda task: self._note(kept, task, loop.time()))
        # A client that disconnects must not cancel the request of the others.
        return cast(T, await asyncio.shield(kept.task))

    def client(self) -> Cluster:
        """A cluster client for a separate thread."""
        return Cluster(self._settings)

    def lease(self) -> Lease:
        """A cluster client for callers that keep state between requests; must be given back."""
        return Lease(self.client())

    async def on(self, lease: Lease, call: ClusterCall[T]) -> T:
        return await self.ask(lambda _: lease.answer(call))

    def give_back(self, lease: Lease) -> None:
        # On a thread: an abandoned request may still be under way.
        self._quick.tidy(lease.close)

    def close(self) -> None:
        self._quick.close()
        self._long.close()

    def _note(self, kept: _Recent, task: asyncio.Task[Any], now: float) -> None:
        # Failures are not cached: the next request may succeed.
        failed = task.cancelled() or task.exception() is not None
        kept.done_at = float("-inf") if failed else now

    def _answer(self, call: ClusterCall[T], seconds: float) -> T:
        with self._lock:
            cluster = self._free.pop() if self._free else Cluster(self._settings)
        cluster.patience_seconds = seconds
        try:
            return call(cluster)
        except Exception:
            # The rest of a failed or aborted exchange must not be taken for the next response.
            cluster.close()
            raise
        finally:
            with self._lock:
                self._free.append(cluster)
