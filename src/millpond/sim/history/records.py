"""What clients did and observed, for the checkers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from millpond.base.named_tuple import NamedTuple
from millpond.wire.records import Record


class TopicIdPartition(NamedTuple):
    """One partition of one incarnation of a topic."""

    topic: str
    topic_id: UUID
    partition_index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition_index} ({str(self.topic_id)[:8]})"


class Promise(Enum):
    """What an acknowledgement of a batch means."""

    NOTHING = 0
    UNTIL_POWER_CUT = 1
    """It is in the page cache: it survives the process."""
    SURVIVES = 2


class Status(Enum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """Every response said that it was not written."""
    UNKNOWN = "unknown"


TAG_HEADER = "tag"


class Content(NamedTuple):
    """What a record carries. Its tag, a header, is unique in the run."""

    tag: str
    key: bytes | None
    value: bytes | None
    timestamp: int

    @classmethod
    def of(cls, record: Record) -> Content:
        tag = dict(record.headers).get(TAG_HEADER) or b""
        return cls(tag.decode(), record.key, record.value, record.timestamp)


@dataclass(slots=True, eq=False)
class SentBatch:
    """One batch of one producer."""

    producer: str
    partition: TopicIdPartition
    contents: tuple[Content, ...]
    promise: Promise
    made_at_ms: int = 0
    uses_topic_name: bool = False
    """It may arrive late and land in the next topic of that name."""
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    status: Status = Status.OPEN
    base_offset: int = -1
    settled_at_ms: int = -1
    attempts: int = 0
    maybe_written: bool = False
    """An attempt got no response, or an error after which the batch may have been written."""

    def records(self) -> list[Record]:
        return [
            Record(delta, content.timestamp, content.key, content.value, ((TAG_HEADER, content.tag.encode()),))
            for delta, content in enumerate(self.contents)
        ]


@dataclass(slots=True)
class Sighting:
    content: Content
    last_seen_ms: int


@dataclass(slots=True)
class TopicFacts:
    """What is known of one topic name. Several values mean that the outcome of a request is open."""

    ids: dict[UUID | None, None] = field(default_factory=dict)
    """Possible ids; None means that the topic does not exist."""
    partition_counts: dict[int, None] = field(default_factory=dict)
    configs: dict[str, dict[str | None, None]] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """Everything that happened in one run."""

    batches: list[SentBatch] = field(default_factory=list)
    seen: dict[TopicIdPartition, dict[int, list[Sighting]]] = field(default_factory=dict)
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    deleted_before: dict[TopicIdPartition, int] = field(default_factory=dict)
    """Acknowledged DeleteRecords: records acknowledged before, with lower offsets, must not reappear."""
    deleted_at_ms: dict[TopicIdPartition, int] = field(default_factory=dict)
    requested_deletes: dict[TopicIdPartition, int] = field(default_factory=dict)
    """The highest offset of DeleteRecords requests, whatever their outcome."""
    forgotten_ids: dict[UUID, None] = field(default_factory=dict)
    """Topics whose deletion was acknowledged."""
    last_power_cut_ms: int = -1
    violations: list[str] = field(default_factory=list)
    """Violations found during the run; the checkers add others."""
    lines: list[str] = field(default_factory=list)
    """Events in order; the same for the same seed."""

    def note(self, now_ms: int, line: str) -> None:
        self.lines.append(f"{now_ms} {line}")

    def settle(self, batch: SentBatch, status: Status, now_ms: int, base_offset: int = -1) -> None:
        assert batch.status is Status.OPEN, "a batch is settled once"
        batch.status = status
        batch.base_offset = base_offset
        batch.settled_at_ms = now_ms
        self.note(now_ms, f"{batch.producer} {batch.partition} {batch.sequence} {status.value} {base_offset}")

    def see(self, partition: TopicIdPartition, records: Sequence[Record], now_ms: int) -> None:
        """A reader got these records."""
        offsets = self.seen.setdefault(partition, {})
        for record in records:
            content = Content.of(record)
            sightings = offsets.setdefault(record.offset, [])
            for sighting in sightings:
                if sighting.content == content:
                    sighting.last_seen_ms = now_ms
                    break
            else:
                sightings.append(Sighting(content, now_ms))

    def counts(self) -> dict[str, int]:
        counts = {status.value: 0 for status in Status}
        for batch in self.batches:
            counts[batch.status.value] += len(batch.contents)
        return counts


def in_order_of_time(lines: Iterable[str]) -> list[str]:
    """Sort lines that begin with their time."""
    return sorted(lines, key=lambda line: int(line.split(" ", 1)[0]))
