"""What producers were told about each record, and what consumers did with it: what a run is judged by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from millpond.base.named_tuple import NamedTuple

RECORDS_MAX: Final = 3_000
"""That one asks for in a run, in all."""
ID_HEADER: Final = "id"


class Status(StrEnum):
    """What a producer knows of a record."""

    WAITING = "waiting"
    """It has not left the producer."""
    SENT = "sent"
    """On its way, or its response is."""
    ACKNOWLEDGED = "acknowledged"
    UNASKED = "unasked"
    """With acks=0 nobody is told anything."""
    REFUSED = "refused"
    IN_DOUBT = "in doubt"
    """Given up without having heard what became of it."""


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
    """The id of the record that a consumer made it of."""

    @property
    def name(self) -> str:
        return self.value or f"#{self.id}"


class Handled(NamedTuple):
    """A consumer has done to a record what it is there for."""

    at_ms: int
    group: str
    consumer: str
    topic: str
    partition: int
    offset: int
    id: int
    is_repeat: bool
    """It was recognised as done before, and nothing was done."""


@dataclass(slots=True)
class Ledger:
    records: dict[int, SentRecord] = field(default_factory=dict)
    handled: list[Handled] = field(default_factory=list)
    effects: dict[str, Counter[int]] = field(default_factory=dict)
    """By group: how often each record had its effect."""
    outside: dict[str, Counter[int]] = field(default_factory=dict)
    """By group whose consumers work in transactions: how often each did what cannot be taken back."""
    given_up: dict[str, dict[int, str]] = field(default_factory=dict)
    """By group: records that were put among the dead letters, with their topic."""
    failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often handling of a record failed, by group and record."""
    known: dict[str, set[int]] = field(default_factory=dict)
    """By group: what a store outside remembers as done."""
    _next_id: int = 1
    _promised: int = 0
    """Records that somebody has asked for, and that come one after the other."""

    def promise(self, count: int) -> bool:
        """Whether there is room for so many more, with all that is still to come; then it is kept for them."""
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
