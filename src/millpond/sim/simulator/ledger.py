"""What producers know about each record and what consumers did with it, for the verdict on a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from millpond.base.named_tuple import NamedTuple

RECORDS_MAX: Final = 3_000
"""Records that actions may create in a run."""
ID_HEADER: Final = "id"


class Status(StrEnum):
    """What a producer knows of a record."""

    WAITING = "waiting"
    """It has not left the producer."""
    SENT = "sent"
    """The request or its response is in flight."""
    ACKNOWLEDGED = "acknowledged"
    UNASKED = "unasked"
    """With acks=0 there is no response."""
    REFUSED = "refused"
    IN_DOUBT = "in doubt"
    """Given up without a response."""


@dataclass(slots=True, eq=False)
class SentRecord:
    id: int
    producer: str
    topic: str
    partition: int
    key: str | None
    value: str
    acks: str
    made_ms: int
    status: Status = Status.WAITING
    offset: int = -1
    settled_ms: int = -1
    attempts: int = 0
    transaction: str = ""
    """The transactional id under which it was written."""
    source: int = 0
    """The id of the record from which a consumer made this one."""

    @property
    def name(self) -> str:
        return self.value or f"#{self.id}"


class Handled(NamedTuple):
    """A consumer processed a record."""

    at_ms: int
    group: str
    consumer: str
    topic: str
    partition: int
    offset: int
    id: int
    is_repeat: bool
    """It was recognised as a duplicate and skipped."""


@dataclass(slots=True)
class Ledger:
    records: dict[int, SentRecord] = field(default_factory=dict)
    handled: list[Handled] = field(default_factory=list)
    effects: dict[str, Counter[int]] = field(default_factory=dict)
    """How often each record was processed, by group."""
    outside: dict[str, Counter[int]] = field(default_factory=dict)
    """How often each record had an external effect, by group with transactions."""
    given_up: dict[str, dict[int, str]] = field(default_factory=dict)
    """Records in a dead-letter topic, with that topic, by group."""
    failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often processing failed, by group and record."""
    delivered: dict[str, Counter[int]] = field(default_factory=dict)
    """How often members received each record, by share group."""
    known: dict[str, set[int]] = field(default_factory=dict)
    """Record ids that an external store has seen, by group."""
    _next_id: int = 1
    _promised: int = 0
    """Records that actions have reserved and not yet created."""

    def promise(self, count: int) -> bool:
        """Reserve this many records; False if the run would have too many."""
        if len(self.records) + self._promised + count > RECORDS_MAX:
            return False
        self._promised += count
        return True

    def promised_record(self, record: SentRecord) -> SentRecord:
        self._promised -= 1
        return self.new_record(record)

    def new_record(self, record: SentRecord) -> SentRecord:
        record.id = self._next_id
        self._next_id += 1
        self.records[record.id] = record
        return record

    def handle(self, handled: Handled) -> None:
        self.handled.append(handled)
        if not handled.is_repeat:
            self.effects.setdefault(handled.group, Counter())[handled.id] += 1
