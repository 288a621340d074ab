"""A member as the group's records hold it: its metadata and its assignment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import groupby
from typing import Final, TypeAlias
from uuid import UUID

from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.groups.memory import HELD_BYTES, names_bytes, protocols_bytes, text_bytes

LEAVING_EPOCH: Final = -1
"""Sent by a member that leaves for good."""
AWAY_EPOCH: Final = -2
"""Sent by a static member that will return; its partitions are kept."""


class TopicIdPartition(NamedTuple):
    topic_id: UUID
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]

NO_PARTITIONS: Final[Partitions] = frozenset()


class MemberState(IntEnum):
    """How far a member is towards its target; the numbers are those of the records."""

    STABLE = 0
    UNREVOKED = 1
    """It still has to revoke partitions."""
    UNRELEASED = 2
    """Others still have to revoke partitions that it waits for."""


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """How a member of the classic protocol joined. `supported` are its assignors with their subscription bytes."""

    session_timeout_ms: int
    supported: tuple[tuple[str, bytes], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.supported)


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """What a member reported about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes."""
        texts = (self.instance_id, self.rack_id, self.client_id, self.client_host, self.regex, self.assignor)
        classic_bytes = 0 if self.classic is None else protocols_bytes(self.classic.supported)
        return sum(map(text_bytes, texts)) + names_bytes(self.topics) + classic_bytes


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member has been assigned. It holds both `assigned` and, until it reports otherwise, `revoking`."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    @property
    def kept_bytes(self) -> int:
        return HELD_BYTES * (len(self.assigned) + len(self.revoking))

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def at_epoch(self, epoch: int) -> CurrentAssignment:
        """The same, one epoch later. The previous epoch is kept, as a response may be lost."""
        return self if epoch == self.epoch else replace(self, epoch=epoch, previous_epoch=self.epoch)


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    metadata: MemberMetadata = field(default_factory=MemberMetadata)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        return self.metadata.classic is not None


def by_topic(partitions: Iterable[TopicIdPartition]) -> list[tuple[UUID, list[int]]]:
    """Partitions as messages carry them: each topic once, sorted, so that equal sets make equal bytes."""
    ordered = sorted(partitions, key=_place)
    return [
        (topic_id, [each.partition for each in group])
        for topic_id, group in groupby(ordered, key=lambda each: each[0])
    ]


def from_topics(topics: Iterable[tuple[UUID, Iterable[int]]]) -> Partitions:
    return frozenset(TopicIdPartition(topic_id, number) for topic_id, numbers in topics for number in numbers)


def _place(each: TopicIdPartition) -> tuple[int, int]:
    return each.topic_id.int, each.partition
