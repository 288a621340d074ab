"""Looks at the queues of a cluster, once or repeatedly. Two looks give rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millpond.admin.groups import SHARE, Group, describe_share_group, list_groups
from millpond.admin.lag import RATE_WINDOW_SECONDS, Unread, read_unread
from millpond.admin.offsets import Bounds, bounds_of
from millpond.admin.queues.compare import rates_between
from millpond.admin.queues.dead import DeadLetterCounts, count_dead_letters, dead_letter_topics
from millpond.admin.queues.offsets import LeaderWindow, Position, positions_of, states_of, windows_of
from millpond.admin.queues.queue import Holder, Queue, QueueName, QueuePartition, Totals
from millpond.admin.topics import led_partitions
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, TopicInfo

GROUPS_MAX: Final = 200
"""At most this many share groups are examined: each costs a few requests."""
LOOKS_MAX: Final = 200
"""The oldest record is read for at most this many partitions without a window."""
DEAD_SECONDS_MAX: Final = 3.0


@dataclass(frozen=True, slots=True)
class Queues:
    queues: tuple[Queue, ...]
    groups_left_out: int = 0
    """Share groups that were not examined, because there are too many."""


class QueueWatch:
    """Looks at the queues of some share groups, or of all."""

    def __init__(
        self,
        cluster: Cluster,
        groups: Collection[str] | None = None,
        *,
        sample_seconds: float = 0.0,
        dead_seconds: float = DEAD_SECONDS_MAX,
    ) -> None:
        """The first look takes `sample_seconds` to measure rates. Dead letters are counted for `dead_seconds`;
        with 0 they are not."""
        self._cluster = cluster
        self._groups = groups
        self._sample_seconds = sample_seconds
        self._dead_seconds = dead_seconds
        self._looks: deque[tuple[float, Queues]] = deque()

    def look(self) -> Queues:
        if not self._looks and self._sample_seconds:
            self._looks.append((time.monotonic(), _look(self._cluster, self._groups)))
            time.sleep(self._sample_seconds)
        now, found = time.monotonic(), _look(self._cluster, self._groups)
        while len(self._looks) > 1 and now - self._looks[0][0] > RATE_WINDOW_SECONDS:
            self._looks.popleft()
        self._looks.append((now, found))
        queues = found.queues
        if len(self._looks) > 1:
            then, before = self._looks[0]
            earlier = {each.name: each for each in before.queues}
            queues = tuple(
                replace(each, rates=rates_between(earlier[each.name], each, now - then))
                if each.name in earlier
                else each
                for each in queues
            )
        if self._dead_seconds:
            topics = dead_letter_topics(self._cluster, sorted({each.name.group for each in queues}))
            counts = count_dead_letters(self._cluster, topics.values(), self._dead_seconds)
            queues = tuple(_with_dead(each, topics.get(each.name.group), counts) for each in queues)
        return Queues(queues, found.groups_left_out)


def read_queues(cluster: Cluster, groups: Collection[str] | None = None, *, sample_seconds: float = 0.0) -> Queues:
    """The queues of these share groups, or of all, by group and topic."""
    return QueueWatch(cluster, groups, sample_seconds=sample_seconds).look()


def _look(cluster: Cluster, names: Collection[str] | None) -> Queues:
    if names is None:
        names = [each.group for each in list_groups(cluster, with_share=True) if each.type == SHARE]
    left_out = max(len(names) - GROUPS_MAX, 0)
    described = [(name, describe_share_group(cluster, name)) for name in sorted(set(names))[:GROUPS_MAX]]
    # A group may have been deleted meanwhile.
    groups = {name: group for name, group in described if group is not None}
    # Offsets before ends: otherwise a busy group would seem to be ahead of its topic.
    positions = {name: positions_of(cluster, name) or {} for name in groups}
    read = {each.topic for some in positions.values() for each in some}
    read.update(each.topic for group in groups.values() for each in group.owners)
    topics = cluster.topics(sorted(read)) if read else {}
    windows = windows_of(cluster, list(groups))
    for name in groups:
        _add_written(cluster, name, topics, positions[name], windows[name])
    bounds = bounds_of(cluster, led_partitions(topics.values()))
    queues = [
        Queue(name, group, _partitions(group, topics[name.topic], positions[name.group], windows[name.group], bounds))
        for group in groups.values()
        for name in _names_of(group, positions[group.id])
        # A deleted topic is no queue.
        if name.topic in topics
    ]
    return Queues(_with_ages(cluster, queues), left_out)


def _add_written(
    cluster: Cluster,
    group: str,
    topics: Mapping[str, TopicInfo],
    positions: Mapping[TopicPartition, Position],
    windows: dict[TopicPartition, LeaderWindow],
) -> None:
    """Add what was written of partitions that no member reads, where something is unfinished: the start that their
    coordinator knows may be earlier than the first unfinished record."""
    open_ones = {
        each: topics[each.topic].partitions[each.partition].leader
        for each, position in positions.items()
        if position.start >= 0 and position.lag > 0 and each not in windows
        if each.topic in topics and each.partition in topics[each.topic].partitions
    }
    if open_ones:
        written = states_of(cluster, group, open_ones, ranges_max=1)
        windows.update((each, window._replace(is_loaded=False)) for each, window in written.items())


def _names_of(group: Group, positions: Iterable[TopicPartition]) -> list[QueueName]:
    topics = {each.topic for each in positions} | {each.topic for each in group.owners}
    return [QueueName(group.id, topic) for topic in sorted(topics)]


def _partitions(
    group: Group,
    topic: TopicInfo,
    positions: Mapping[TopicPartition, Position],
    windows: Mapping[TopicPartition, LeaderWindow],
    bounds: Mapping[TopicPartition, Bounds],
) -> tuple[QueuePartition, ...]:
    members = {each.id: (each.client, each.host) for each in group.members}
    found = []
    for number, info in sorted(topic.partitions.items()):
        key = TopicPartition(topic.name, number)
        each = _partition(number, positions.get(key), windows.get(key), bounds.get(key), members)
        found.append(replace(each, leader=info.leader))
    return tuple(found)


def _partition(
    number: int,
    position: Position | None,
    window: LeaderWindow | None,
    bound: Bounds | None,
    members: Mapping[str, tuple[str, str]],
) -> QueuePartition:
    if window is not None:
        return _from_window(number, window, members)
    start = position.start if position is not None and position.start >= 0 else None
    end = None if bound is None else bound.end
    if start is None or position is None or bound is None:
        return QueuePartition(number, -1, start, end, None)
    # Records before the first one in the log were deleted.
    left = max(bound.end - max(start, bound.start), 0)
    return QueuePartition(number, -1, start, end, min(position.lag, left) if position.lag >= 0 else left)


def _from_window(number: int, described: LeaderWindow, members: Mapping[str, tuple[str, str]]) -> QueuePartition:
    window = described.window
    kept = window.acquired + window.delayed + window.archiving
    holders = []
    for each in window.holders:
        client, host = members.get(each.member_id, (None, None))
        holders.append(Holder(each.member_id, client, host, each.records, each.lock_left_ms))
    return QueuePartition(
        number,
        -1,
        start=described.start,
        end=window.high_watermark,
        waiting=max(described.lag - kept, 0),
        out=window.acquired,
        delayed=window.delayed,
        archiving=window.archiving,
        finished=window.finished,
        next_due_ms=window.next_due_ms if window.next_due_ms >= 0 else None,
        oldest_age_ms=_age_ms(window.oldest_timestamp_ms) if described.lag else None,
        holders=tuple(holders),
        totals=Totals(
            window.delivered,
            window.accepted,
            window.released,
            window.rejected,
            window.expired,
            window.dead_letters,
        )
        if described.is_loaded
        else None,
    )


def _with_ages(cluster: Cluster, queues: Iterable[Queue]) -> tuple[Queue, ...]:
    """Reads the oldest record of partitions whose leader does not know its age."""
    listed = list(queues)
    starts: dict[TopicPartition, set[int]] = {}
    for queue in listed:
        for each in queue.partitions:
            if len(starts) < LOOKS_MAX and each.start is not None and each.unfinished and each.oldest_age_ms is None:
                starts.setdefault(TopicPartition(queue.name.topic, each.partition), set()).add(each.start)
    unread = read_unread(cluster, starts) if starts else {}
    return tuple(
        replace(
            queue,
            partitions=tuple(
                _with_age(each, unread.get(TopicPartition(queue.name.topic, each.partition), {}))
                for each in queue.partitions
            ),
        )
        for queue in listed
    )


def _with_age(partition: QueuePartition, unread: Mapping[int, Unread]) -> QueuePartition:
    if partition.start is None or partition.start not in unread or partition.waiting is None:
        return partition
    first = unread[partition.start]
    if not partition.finished and not partition.out and not partition.delayed and not partition.archiving:
        # Offsets before the first record hold none, such as control records.
        waiting = min(partition.waiting, max((partition.end or 0) - first.offset, 0))
        partition = replace(partition, waiting=waiting)
    return replace(partition, oldest_age_ms=first.age_ms if partition.unfinished else None)


def _with_dead(queue: Queue, topic: str | None, counts: Mapping[str, DeadLetterCounts]) -> Queue:
    if topic is None or topic not in counts:
        return replace(queue, dead_letter_topic=topic)
    counted = counts[topic]
    return replace(queue, dead_letter_topic=topic, dead=counted.by_queue[queue.name], is_dead_exact=counted.is_whole)


def _age_ms(timestamp_ms: int) -> int | None:
    return max(time.time_ns() // 1_000_000 - timestamp_ms, 0) if timestamp_ms >= 0 else None
