"""Problems in a cluster that need attention, each a value with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from millpond.admin.health import Health
from millpond.admin.queues.queue import Queue
from millpond.base.ids import TopicPartition

NO_LETTERS: Final[Mapping[str, int]] = MappingProxyType({})
BEHIND_MS: Final = 5 * 60 * 1000
"""By default, a group or queue is late if its oldest unread or unfinished record is older than this."""
FREE_BYTES: Final = 1 << 30
"""By default, a disk with less free space than this is nearly full."""


@dataclass(frozen=True, slots=True)
class NodeAway:
    node_id: int


@dataclass(frozen=True, slots=True)
class NodeBehind:
    """Replicas of a node are not in sync."""

    node_id: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Leaderless:
    """Partitions that can be neither written nor read."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DiskFailed:
    node_id: int
    folder: str


@dataclass(frozen=True, slots=True)
class DiskNearlyFull:
    node_id: int
    folder: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class NoCoordinators:
    reason: str


@dataclass(frozen=True, slots=True)
class GroupLate:
    group: str
    behind_ms: int
    lag: int
    members: int


@dataclass(frozen=True, slots=True)
class GroupLost:
    """Records were deleted before the group read them."""

    group: str
    lost: int


@dataclass(frozen=True, slots=True)
class QueueUnread:
    """Records wait in a work queue, and its group has no members."""

    topic: str
    group: str
    waiting: int


@dataclass(frozen=True, slots=True)
class QueueLate:
    """A work queue has members, and its oldest unfinished record is old."""

    topic: str
    group: str
    oldest_age_ms: int
    unfinished: int
    members: int


@dataclass(frozen=True, slots=True)
class LettersWaiting:
    """Dead letters have been neither redriven nor purged."""

    topic: str
    count: int


Concern = (
    NodeAway
    | NodeBehind
    | Leaderless
    | DiskFailed
    | DiskNearlyFull
    | NoCoordinators
    | GroupLate
    | GroupLost
    | QueueUnread
    | QueueLate
    | LettersWaiting
)


def find_concerns(
    health: Health,
    behind_ms: int = BEHIND_MS,
    free_bytes: int = FREE_BYTES,
    letters: Mapping[str, int] = NO_LETTERS,
) -> Iterator[Concern]:
    """`letters` has the number of waiting dead letters by topic."""
    for node in health.nodes.nodes:
        if node.address is None:
            yield NodeAway(node.node_id)
        elif node.behind:
            yield NodeBehind(node.node_id, len(node.behind))
    if health.leaderless:
        yield Leaderless(health.leaderless)
    for disk in health.disks:
        if disk.is_failed:
            yield DiskFailed(disk.node_id, disk.folder)
        elif disk.free_bytes is not None and disk.free_bytes < free_bytes:
            yield DiskNearlyFull(disk.node_id, disk.folder, disk.free_bytes)
    if health.coordinators_failure:
        yield NoCoordinators(health.coordinators_failure)
    for late in health.late_groups(behind_ms):
        yield GroupLate(late.group.id, late.behind_ms or 0, late.lag, len(late.group.members))
    for group in health.groups:
        if group.lost:
            yield GroupLost(group.group.id, group.lost)
    yield from _of_queues(health.queues, behind_ms)
    for topic, count in letters.items():
        yield LettersWaiting(topic, count)


def _of_queues(queues: Iterable[Queue], behind_ms: int) -> Iterator[Concern]:
    for queue in queues:
        members, oldest_age_ms = len(queue.group.members), queue.oldest_age_ms or 0
        if oldest_age_ms <= behind_ms:
            continue
        if not members:
            yield QueueUnread(queue.name.topic, queue.name.group, queue.waiting)
        elif queue.unfinished != queue.delayed:
            # A record that is delayed waits on purpose.
            yield QueueLate(queue.name.topic, queue.name.group, oldest_age_ms, queue.unfinished, members)
