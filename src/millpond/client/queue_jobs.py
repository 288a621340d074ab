"""The records that a queue worker holds: ready, running, or waiting for their acknowledgement. No threads in here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from millpond.client.dead_letters import Origin
from millpond.client.message import Message
from millpond.client.retry import read_new
from millpond.remote.shares.held_record import HeldRecord

AHEAD_SECONDS: Final = 0.2
"""A worker takes ahead what its handlers finish in this time: a record that waits here waits for no one else."""
_WEIGHT: Final = 0.2
"""Of the latest handler in the average."""


@dataclass(slots=True, eq=False)
class QueueJob:
    held: HeldRecord
    message: Message
    """As the handler sees it."""
    origin: Origin
    attempts: int
    redriven: int
    group: str | None
    """The only group it is for, if it was sent back from the dead letters."""


def job_of(held: HeldRecord) -> QueueJob:
    incoming = read_new(message_of(held))
    return QueueJob(held, incoming.message, incoming.origin, held.deliveries, incoming.redriven, incoming.group)


def message_of(held: HeldRecord) -> Message:
    record = held.record
    topic, partition = held.partition
    return Message(topic, partition, record.offset, record.timestamp, record.key, record.value, record.headers)


class QueueJobs:
    """Counts records, and says how many more the worker may take. The caller holds the lock."""

    def __init__(self, concurrency: int, in_flight_max: int) -> None:
        self._concurrency = concurrency
        self._in_flight_max = in_flight_max
        self._ready: deque[QueueJob] = deque()
        self.running: set[QueueJob] = set()
        self._settling: set[QueueJob] = set()
        """Handled; what they sent, or their acknowledgement, has no answer yet."""
        self._allowed = 0
        """Records that the consumer may hold ready, besides those in here."""
        self._average_s: float | None = None

    def __len__(self) -> int:
        return len(self._ready) + len(self.running) + len(self._settling)

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    @property
    def settling_count(self) -> int:
        return len(self._settling)

    def add(self, job: QueueJob) -> None:
        self._ready.append(job)
        self._allowed -= 1

    def start(self) -> QueueJob | None:
        if not self._ready:
            return None
        job = self._ready.popleft()
        self.running.add(job)
        return job

    def settle(self, job: QueueJob, handler_s: float) -> None:
        """The handler has ended."""
        self.running.discard(job)
        self._settling.add(job)
        before = handler_s if self._average_s is None else self._average_s
        self._average_s = before + (handler_s - before) * _WEIGHT

    def drop(self, job: QueueJob) -> None:
        """Forget one that was not started."""
        self._ready.remove(job)

    def end(self, job: QueueJob) -> None:
        self._settling.discard(job)

    def drop_ready(self) -> int:
        """Forget those that have not started. How many there were."""
        count = len(self._ready)
        self._ready.clear()
        return count

    def room(self) -> int:
        """By how many records the consumer's allowance changes."""
        ahead = 0
        if self._average_s is not None:
            ahead = min(int(self._concurrency * AHEAD_SECONDS / max(self._average_s, 1e-6)), self._in_flight_max)
        busy = len(self._ready) + len(self.running)
        allowed = min(self._concurrency + ahead - busy, self._in_flight_max - len(self))
        change = allowed - self._allowed
        self._allowed = allowed
        return change
