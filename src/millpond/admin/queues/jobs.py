"""The next unfinished records of a queue, read from the log, so that nobody takes them."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millpond.admin.groups import describe_share_group
from millpond.admin.offsets import Bounds, bounds_of
from millpond.admin.queues.offsets import LeaderWindow, positions_of, states_of
from millpond.admin.queues.queue import QueueName
from millpond.admin.queues.settings import AUTO_OFFSET_RESET, ISOLATION_LEVEL, values_of
from millpond.admin.topics import find_topic, led_partitions
from millpond.base.ids import TopicPartition
from millpond.base.names import DELIVER_AT_HEADER, PRIORITY_HEADER
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import Isolation
from millpond.remote.reader import read_records
from millpond.wire.records import Record

BYTES_MAX: Final = 64 << 20
"""Keys and values of all jobs together."""
RANGES_MAX: Final = 1_000
SECONDS_MAX: Final = 5.0

WAITING: Final = "waiting"
DELAYED: Final = "delayed"
OUT: Final = "out"
GIVEN_UP: Final = "archiving"
UNKNOWN: Final = "unknown"
"""Not finished before the window's start; the leader has not said more."""

_AVAILABLE, _ACQUIRED, _ACKNOWLEDGED, _ARCHIVING, _ARCHIVED, _DELAYED = range(6)
_STATES: Final = {_AVAILABLE: WAITING, _ACQUIRED: OUT, _ARCHIVING: GIVEN_UP, _DELAYED: DELAYED}
_FINISHED: Final = (_ACKNOWLEDGED, _ARCHIVED)


@dataclass(frozen=True, slots=True)
class Job:
    """An unfinished record."""

    partition: int
    record: Record
    state: str
    deliveries: int | None
    """How often members have received it. None: unknown."""
    deliver_at_ms: int | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Peek:
    jobs: tuple[Job, ...]
    not_started: tuple[int, ...] = ()
    """Partitions that the group has not read yet, and where it begins at the end: it skips what they have now."""
    is_whole: bool = True
    """False: time or memory ran out first."""


class _States:
    """The states of the offsets of one partition, as its leader describes them."""

    def __init__(self, window: LeaderWindow | None, *, is_untouched: bool) -> None:
        """`is_untouched`: without a window, no record is finished or out."""
        self._otherwise = WAITING if is_untouched else UNKNOWN
        self._ranges = [] if window is None else window.window.ranges
        self._firsts = [each.first_offset for each in self._ranges]
        self._window = window

    def at(self, offset: int) -> tuple[str, int | None] | None:
        """The state, and the deliveries if known; None if the record is finished."""
        if self._window is None:
            return self._otherwise, None
        if offset >= self._window.window.end_offset:
            return WAITING, 0
        index = bisect_right(self._firsts, offset) - 1
        if index < 0 or offset > self._ranges[index].last_offset:
            # Not all ranges were listed.
            return UNKNOWN, None
        found = self._ranges[index]
        if found.state in _FINISHED:
            return None
        return _STATES.get(found.state, UNKNOWN), found.deliveries


def peek(cluster: Cluster, name: QueueName, limit: int, *, seconds: float = SECONDS_MAX) -> Peek:
    """The first unfinished records of the queue, the oldest first."""
    info = find_topic(cluster, name.topic)
    settings = values_of(cluster, [name.group], [AUTO_OFFSET_RESET, ISOLATION_LEVEL]).get(name.group, {})
    isolation: Isolation = (
        "read_committed" if settings.get(ISOLATION_LEVEL) == "read_committed" else "read_uncommitted"
    )
    positions = positions_of(cluster, name.group) or {}
    leaders = {TopicPartition(name.topic, number): each.leader for number, each in info.partitions.items()}
    windows = states_of(cluster, name.group, leaders, ranges_max=RANGES_MAX)
    group = describe_share_group(cluster, name.group)
    is_idle = group is None or not group.members
    bounds = bounds_of(cluster, led_partitions([info]), isolation)
    begins_first = settings.get(AUTO_OFFSET_RESET) == "earliest"
    starts: dict[TopicPartition, tuple[int, _States]] = {}
    not_started = []
    for partition, bound in bounds.items():
        position, window = positions.get(partition), windows.get(partition)
        if position is not None and not position.lag and window is None:
            # All is finished, also what comes after the start that is known.
            continue
        if window is not None:
            starts[partition] = window.start, _States(window, is_untouched=False)
        elif position is not None and position.start >= 0:
            is_untouched = is_idle and position.lag == bound.end - position.start
            starts[partition] = position.start, _States(None, is_untouched=is_untouched)
        elif begins_first:
            starts[partition] = 0, _States(None, is_untouched=True)
        else:
            not_started.append(partition.partition)
    deadline = time.monotonic() + seconds
    jobs, is_whole = _read(cluster, starts, bounds, isolation, limit, deadline)
    return Peek(tuple(jobs), tuple(sorted(not_started)), is_whole)


def _read(
    cluster: Cluster,
    starts: Mapping[TopicPartition, tuple[int, _States]],
    bounds: Mapping[TopicPartition, Bounds],
    isolation: Isolation,
    limit: int,
    deadline: float,
) -> tuple[list[Job], bool]:
    jobs: list[Job] = []
    is_whole = True
    for partition, (start, states) in starts.items():
        bound = bounds[partition]
        records = read_records(
            cluster,
            partition,
            max(start, bound.start),
            bound.end,
            isolation=isolation,
            is_up=lambda _: time.monotonic() > deadline,
        )
        jobs += _unfinished(partition.partition, records, states, limit)
        jobs.sort(key=lambda each: (each.record.timestamp, each.partition, each.record.offset))
        fitting = _fitting(jobs[:limit])
        is_whole = is_whole and len(fitting) == min(len(jobs), limit)
        jobs = fitting
    return jobs, is_whole and time.monotonic() <= deadline


def _fitting(jobs: list[Job]) -> list[Job]:
    """As many of the first ones as fit into memory, and at least one."""
    total = 0
    for number, job in enumerate(jobs):
        total += _size(job.record)
        if number and total > BYTES_MAX:
            return jobs[:number]
    return jobs


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _unfinished(partition: int, records: Iterable[Record], states: _States, limit: int) -> list[Job]:
    now_ms = time.time_ns() // 1_000_000
    jobs: list[Job] = []
    total = 0
    for record in records:
        described = states.at(record.offset)
        if described is None:
            continue
        state, deliveries = described
        due_ms = _number(record, DELIVER_AT_HEADER)
        if state == WAITING and due_ms is not None and due_ms > now_ms:
            state = DELAYED
        jobs.append(Job(partition, record, state, deliveries, due_ms, _number(record, PRIORITY_HEADER)))
        total += _size(record)
        if len(jobs) == limit or total > BYTES_MAX:
            break
    return jobs


def _number(record: Record, name: str) -> int | None:
    """The number in a header; what cannot be read is ignored, as the broker does."""
    values = [value for header, value in record.headers if header == name]
    if not values or values[-1] is None or len(values[-1]) > 18 or not values[-1].isdigit():
        return None
    return int(values[-1])
