"""Loads of work queues: workers that take one job at a time, acknowledge it, and take the next one.

All workers are connections of one process, so that the client costs little. A module `queue_BROKER` has the protocol:
`Sender(port, options)` and `Worker(port, options)`.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from importlib import import_module
from typing import Any, Protocol

from bench.load_raw import percentiles_ms, raise_descriptor_limit
from bench.noise import Measured

CHUNK = 200
"""Jobs sent together while a backlog is kept up."""
BACKLOG = 2_000
"""Jobs that wait while throughput is measured."""
PACE_PER_SECOND = 500
IDLE_SECONDS_MAX = 30.0
WARM_JOBS = 50
JOB_BYTES = 100
SENT_AT = struct.Struct(">Q")


def job() -> bytes:
    """A job that says when it was sent."""
    return SENT_AT.pack(time.perf_counter_ns()) + b"v" * (JOB_BYTES - SENT_AT.size)


class Sender(Protocol):
    socket: socket.socket

    def send(self, jobs: list[bytes]) -> None: ...

    def answered(self) -> int:
        """Read from the socket: how many jobs more are acknowledged."""
        ...


class Worker(Protocol):
    socket: socket.socket

    def begin(self) -> None:
        """Ask for the first job."""
        ...

    def received(self) -> list[bytes]:
        """Read from the socket: the jobs that have come. The next call of `finish` is about them."""
        ...

    def finish(self) -> None:
        """Acknowledge what was received, and ask for the next job."""
        ...

    def keep_alive(self) -> None:
        """Called every few seconds."""
        ...


KEEP_ALIVE_SECONDS = 2.0
WAIT_MS = 500


class Crew:
    """A sender and its workers."""

    def __init__(self, port: int, broker: str, workers: int, **options: Any) -> None:
        raise_descriptor_limit()
        module = import_module(f"bench.queue_{broker}")
        self.sender: Sender = module.Sender(port, **options)
        self.workers: dict[int, Worker] = {}
        for _ in range(workers):
            worker = module.Worker(port, **options)
            self.workers[worker.socket.fileno()] = worker
        self._poll = select.epoll()
        for descriptor in (self.sender.socket.fileno(), *self.workers):
            self._poll.register(descriptor, select.EPOLLIN)
        self.unanswered = 0
        self.waiting = 0
        """Jobs that were sent and not received."""
        self._kept_alive_at = time.perf_counter()
        for worker in self.workers.values():
            worker.begin()
        self.send(WARM_JOBS)
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        while self.waiting:
            self.step([], 0.1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.waiting} jobs were not delivered")

    def send(self, count: int) -> None:
        self.sender.send([job() for _ in range(count)])
        self.unanswered += count
        self.waiting += count

    def step(self, waits: list[int], seconds: float) -> int:
        """Serve whoever has something to say; how many jobs were finished."""
        finished = 0
        for descriptor, _ in self._poll.poll(seconds):
            worker = self.workers.get(descriptor)
            if worker is None:
                self.unanswered -= self.sender.answered()
                continue
            jobs = worker.received()
            if jobs:
                now = time.perf_counter_ns()
                waits += [now - SENT_AT.unpack_from(each)[0] for each in jobs]
                finished += len(jobs)
            worker.finish()
        self.waiting -= finished
        if time.perf_counter() - self._kept_alive_at > KEEP_ALIVE_SECONDS:
            self._kept_alive_at = time.perf_counter()
            for worker in self.workers.values():
                worker.keep_alive()
        return finished


class Jobs:
    """As many jobs as the workers can take, with a backlog that stays."""

    def __init__(self, port: int, broker: str, workers: int, **options: Any) -> None:
        self._crew = Crew(port, broker, workers, **options)

    def run(self, seconds: float) -> Measured:
        crew = self._crew
        began = time.perf_counter()
        finished = 0
        last_finished = began
        while (now := time.perf_counter()) - began < seconds:
            if crew.waiting < BACKLOG and crew.unanswered < BACKLOG:
                crew.send(CHUNK)
            count = crew.step([], 0.1)
            finished += count
            last_finished = now if count else last_finished
            if now - last_finished > IDLE_SECONDS_MAX:
                raise TimeoutError("no job was delivered")
        return {"seconds": time.perf_counter() - began, "messages": finished}


class PacedJobs:
    """Jobs at a steady rate: how long from the send to the worker."""

    def __init__(self, port: int, broker: str, workers: int, **options: Any) -> None:
        self._crew = Crew(port, broker, workers, **options)

    def run(self, seconds: float) -> Measured:
        crew = self._crew
        waits: list[int] = []
        began = time.perf_counter()
        sent = 0
        deadline = began + seconds + IDLE_SECONDS_MAX
        while sent < seconds * PACE_PER_SECOND or crew.waiting:
            now = time.perf_counter()
            if now > deadline:
                raise TimeoutError(f"{crew.waiting} jobs were not delivered")
            due = began + sent / PACE_PER_SECOND
            if sent < seconds * PACE_PER_SECOND and now >= due:
                crew.send(1)
                sent += 1
                continue
            crew.step(waits, max(due - now, 0.0) if sent < seconds * PACE_PER_SECOND else 0.1)
        return {"seconds": time.perf_counter() - began, "messages": len(waits), **percentiles_ms(waits)}
