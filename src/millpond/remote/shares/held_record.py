"""A record that this member of a share group holds, and what it says about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias
from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.remote.errors import ClientError
from millpond.wire.records import Record

PartitionKey: TypeAlias = tuple[UUID, int]
"""A topic id and the number of a partition."""


class Verdict(IntEnum):
    """The acknowledge types of the protocol."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(slots=True, eq=False)
class HeldRecord:
    """One delivery of a record. A later delivery of the same record is another object."""

    key: PartitionKey
    partition: TopicPartition
    record: Record
    deliveries: int
    """How often the record has been delivered, this time included."""
    locked_until: float
    """The monotonic time until which no other member receives it, unless the lock is lost."""
    lock_seconds: float
    leader: int = -1
    """The node that delivered it, which alone takes its acknowledgement."""
    verdict: Verdict | None = None
    """Given, though the leader may not have taken it yet."""
    loss: str | None = None
    """Why this member no longer holds it."""
    is_renewing: bool = False

    def __str__(self) -> str:
        return f"{self.partition.topic}[{self.partition.partition}]@{self.record.offset}"


OnSettled = Callable[["ClientError | None"], None]
"""Called once, with None when the leader has taken the acknowledgement."""


@dataclass(slots=True, eq=False)
class Acknowledgement:
    """A verdict on one offset, until the leader has taken or refused it."""

    offset: int
    verdict: Verdict
    held: HeldRecord | None
    """None for a gap."""
    delay_ms: int = 0
    error_type: str = ""
    error_message: str = ""
    on_settled: OnSettled | None = field(default=None, repr=False)
    cohort: int = 0
    """Those with the same number above 0 are sent together and without others: one of them was refused before."""
    tries: int = 0
