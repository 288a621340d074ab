"""A work queue and its partitions, as they are at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millpond.admin.groups import Group
from millpond.base.named_tuple import NamedTuple


class QueueName(NamedTuple):
    """A topic as a share group reads it."""

    group: str
    topic: str

    def __str__(self) -> str:
        return f"{self.topic} of group {self.group}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A member that holds records of a partition."""

    member: str
    client: str | None
    host: str | None
    """Of both, None if the member has left the group."""
    records: int
    lock_left_ms: int
    """Until the first of its locks expires."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What has happened to records since the leader loaded the window. A record delivered twice counts twice."""

    delivered: int = 0
    accepted: int = 0
    released: int = 0
    """By members, or because they left."""
    rejected: int = 0
    expired: int = 0
    """Locks that ran out."""
    dead_letters: int = 0
    """Written by the broker."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.delivered + other.delivered,
            self.accepted + other.accepted,
            self.released + other.released,
            self.rejected + other.rejected,
            self.expired + other.expired,
            self.dead_letters + other.dead_letters,
        )


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """A partition of the queue. Counts are of offsets, of which some may have no record.

    None is unknown: Apache Kafka says nothing of windows, and a leader has none where nobody reads and nothing is
    unfinished.
    """

    partition: int
    leader: int
    """-1 if there is none."""
    start: int | None
    """Everything before it is finished. None if the group has not read the partition yet: where it begins
    is up to `share.auto.offset.reset`."""
    end: int | None
    waiting: int | None
    """Records that a member can receive now. Without a window, also those that are out, delayed or archiving."""
    out: int | None = None
    """Records that members hold."""
    delayed: int | None = None
    archiving: int | None = None
    """Given up; their dead letters are being written."""
    finished: int | None = None
    """Finished, after records that are not."""
    next_due_ms: int | None = None
    """When the first delayed record falls due, since the epoch."""
    oldest_age_ms: int | None = None
    """The age of the oldest unfinished record."""
    holders: tuple[Holder, ...] = ()
    totals: Totals | None = None

    @property
    def unfinished(self) -> int | None:
        if self.waiting is None:
            return None
        return self.waiting + (self.out or 0) + (self.delayed or 0) + (self.archiving or 0)

    @property
    def is_started(self) -> bool:
        return self.start is not None

    @property
    def done(self) -> int | None:
        """Grows by one with each record that is finished."""
        unfinished = self.unfinished
        return None if self.end is None or unfinished is None else self.end - unfinished


@dataclass(frozen=True, slots=True)
class QueueRates:
    """Records per second between two looks. None: unknown."""

    written: float | None
    delivered: float | None
    """Also unknown without windows."""
    finished: float | None


@dataclass(frozen=True, slots=True)
class Queue:
    name: QueueName
    group: Group
    """Its members may read other topics, too."""
    partitions: tuple[QueuePartition, ...]
    dead_letter_topic: str | None = None
    dead: int | None = None
    """Dead letters of this queue that wait to be redriven or purged. None: unknown, or the group has no topic
    for them."""
    is_dead_exact: bool = True
    """False: there may be more, because not all could be counted in time."""
    rates: QueueRates | None = None
    """None until there are two looks."""

    @property
    def state(self) -> str:
        return self.group.state

    @property
    def waiting(self) -> int:
        return sum_known(each.waiting for each in self.partitions) or 0

    @property
    def out(self) -> int | None:
        return sum_known(each.out for each in self.partitions)

    @property
    def delayed(self) -> int | None:
        return sum_known(each.delayed for each in self.partitions)

    @property
    def archiving(self) -> int | None:
        return sum_known(each.archiving for each in self.partitions)

    @property
    def unfinished(self) -> int:
        return sum_known(each.unfinished for each in self.partitions) or 0

    @property
    def oldest_age_ms(self) -> int | None:
        return max((each.oldest_age_ms for each in self.partitions if each.oldest_age_ms is not None), default=None)

    @property
    def next_due_ms(self) -> int | None:
        return min((each.next_due_ms for each in self.partitions if each.next_due_ms is not None), default=None)

    @property
    def totals(self) -> Totals | None:
        known = [each.totals for each in self.partitions if each.totals is not None]
        return sum(known, Totals()) if known else None

    @property
    def not_started(self) -> tuple[int, ...]:
        """Partitions that the group has not read yet."""
        return tuple(each.partition for each in self.partitions if not each.is_started)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The members that hold records, each once, those with most records first."""
        merged: dict[str, Holder] = {}
        for each in (holder for partition in self.partitions for holder in partition.holders):
            other = merged.get(each.member)
            if other is not None:
                records, left_ms = each.records + other.records, min(each.lock_left_ms, other.lock_left_ms)
                each = Holder(each.member, each.client, each.host, records, left_ms)
            merged[each.member] = each
        return tuple(sorted(merged.values(), key=lambda each: (-each.records, each.member)))


def sum_known(values: Iterable[int | None]) -> int | None:
    """None if none is known."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None
