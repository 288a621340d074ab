"""Check a cluster's guarantees after a campaign, from the responses that its clients got.

`lost`               acknowledged, but not in the topic
`moved`              acknowledged at an offset that has another record
`duplicated`         in the topic twice, although its producer is idempotent
`reordered`          in the topic in another order than it was written
`aborted but read`   a read_committed consumer got a record of an aborted transaction
`skipped`            acknowledged, but a group that read to the end never got it
`offset moved back`  a group's committed offset decreased
`told it is gone`    a consumer got an error that its offset does not exist
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

CLASSES: Final = (
    "lost",
    "moved",
    "duplicated",
    "reordered",
    "aborted but read",
    "skipped",
    "offset moved back",
    "told it is gone",
)
EXAMPLES_MAX: Final = 5


class Written(NamedTuple):
    """One record of one producer; its records are numbered in the order in which they were written."""

    producer: int
    number: int

    @classmethod
    def parsed(cls, value: bytes) -> Written:
        producer, number = value.split(b":")
        return cls(int(producer), int(number))

    def __bytes__(self) -> bytes:
        return b"%d:%d" % self


UNTOLD: Final = -1
"""The offset of a record whose producer does not know it.

librdkafka treats a batch with an unknown outcome (a timeout, a broken connection) as written when a later one of the
same partition is acknowledged, as nothing could have been written after a gap; it does not ask for the offset then.
"""


class Ack(NamedTuple):
    partition: int
    offset: int
    record: Written


@dataclass
class Findings:
    """How often each guarantee was broken, with a few examples."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, what: str) -> None:
        assert kind in CLASSES, kind
        self.counts[kind] += 1
        if self.counts[kind] <= EXAMPLES_MAX:
            self.examples.append(f"{kind}: {what}")

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        told = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        return f"{told or 'nothing wrong'}\n" + "\n".join(self.examples)


Log = Mapping[int, Sequence[tuple[int, Written]]]
"""By partition: offset and record of everything in the topic, in offset order."""


def located(acks: Iterable[Ack], log: Log) -> list[Ack]:
    """Fill in missing offsets from the topic, for records that it has."""
    at = {record: (partition, offset) for partition, records in log.items() for offset, record in records}
    return [Ack(*at[ack.record], ack.record) if ack.offset == UNTOLD and ack.record in at else ack for ack in acks]


def check_topic(acks: Iterable[Ack], log: Log, findings: Findings) -> None:
    """Acknowledged records are in the topic, at their offsets, once and in order."""
    at = {(partition, offset): record for partition, records in log.items() for offset, record in records}
    copies = Counter(record for records in log.values() for _, record in records)
    for ack in acks:
        result = at.get((ack.partition, ack.offset))
        if result == ack.record:
            continue
        if ack.record not in copies:
            findings.add("lost", f"{ack}")
        elif result is not None:
            findings.add("moved", f"{ack}, where {result} is")
        else:
            findings.add("moved", f"{ack}, where nothing is")
    for record, count in copies.items():
        if count > 1:
            findings.add("duplicated", f"{record} is there {count} times")
    for partition, records in log.items():
        newest: dict[int, int] = {}
        for offset, record in records:
            before = newest.get(record.producer, -1)
            if record.number < before and copies[record] == 1:
                findings.add("reordered", f"{record} at {partition}:{offset} comes after {before}")
            newest[record.producer] = max(before, record.number)


def check_reads(group: str, acks: Iterable[Ack], read: Iterable[tuple[int, int]], findings: Findings) -> None:
    """A group that has read to the end got every acknowledged record."""
    given = set(read)
    for ack in acks:
        if (ack.partition, ack.offset) not in given:
            findings.add("skipped", f"{group} was never given {ack}")


def check_commits(group: str, commits: Iterable[tuple[int, int]], findings: Findings) -> None:
    """A group's committed offsets, as observed over time by partition, never decrease."""
    newest: dict[int, int] = {}
    for partition, offset in commits:
        before = newest.get(partition, -1)
        if offset < before:
            findings.add("offset moved back", f"{group}, partition {partition}: from {before} to {offset}")
        newest[partition] = max(before, offset)


def check_copy(
    records: int, partitions: Sequence[Sequence[tuple[int, int]]], nonsense: int, findings: Findings
) -> None:
    """A transactional copy has every number once, each key in order, and nothing that was aborted."""
    seen = Counter(number for copied in partitions for _, number in copied)
    for number in range(records):
        if not seen[number]:
            findings.add("lost", f"number {number} of the copy")
        elif seen[number] > 1:
            findings.add("duplicated", f"number {number} of the copy came {seen[number]} times")
    for partition, copied in enumerate(partitions):
        newest: dict[int, int] = {}
        for key, number in copied:
            if number == nonsense:
                findings.add("aborted but read", f"partition {partition} of the copy")
                continue
            if number < newest.get(key, -1) and seen[number] == 1:
                findings.add("reordered", f"number {number} of the copy comes after {newest[key]}")
            newest[key] = max(number, newest.get(key, -1))
