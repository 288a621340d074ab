"""The Sends of finished records, by source partition, until a transaction commits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millpond.base.ids import TopicPartition
from millpond.client.committers import OnRefused, refused_letter
from millpond.client.message import Send


@dataclass(slots=True, frozen=True, eq=False)
class OutgoingRecord:
    """A finished record: all of its Sends are in one transaction."""

    offset: int
    on_refused: OnRefused | None
    """Makes the Send that replaces all of them when one is refused."""


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class OutgoingSend(Send):
    record: OutgoingRecord


def outgoing_sends(sends: Sequence[Send], offset: int, on_refused: OnRefused | None) -> list[Send]:
    """The Sends with a reference to their record."""
    if on_refused is None and len(sends) == 1:
        on_refused = refused_letter(sends[0])
    record = OutgoingRecord(offset, on_refused)
    return [_tied(each, record) for each in sends]


def _tied(send: Send, record: OutgoingRecord) -> OutgoingSend:
    return OutgoingSend(send.topic, send.value, send.key, send.headers, send.partition, record=record)


@dataclass(slots=True)
class Portion:
    """The first Sends of an outbox, up to the end of a record, with the offsets to commit together with them."""

    sends: list[OutgoingSend] = field(default_factory=list)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    counts: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Finished:
    offset: int
    """To commit once everything in `outgoing` is sent."""
    outgoing: list[OutgoingSend] = field(default_factory=list)


class Outbox:
    def __init__(self) -> None:
        self._finished: dict[TopicPartition, _Finished] = {}

    def __bool__(self) -> bool:
        return bool(self._finished)

    def __str__(self) -> str:
        return ", ".join(f"{topic}[{number}] up to {each.offset}" for (topic, number), each in self._finished.items())

    def add(self, partition: TopicPartition, offset: int, sends: Sequence[Send]) -> None:
        finished = self._finished.setdefault(partition, _Finished(offset))
        finished.offset = offset
        for each in sends:
            assert isinstance(each, OutgoingSend), "its record is unknown"
            finished.outgoing.append(each)

    def first(self, sends_max: int) -> Portion:
        """At most this many Sends, but at least those of one record."""
        portion = Portion()
        for partition, finished in self._finished.items():
            count = _whole_records(finished.outgoing, sends_max - len(portion.sends), is_first=not portion.sends)
            if finished.outgoing and not count:
                break
            portion.sends += finished.outgoing[:count]
            portion.counts[partition] = count
            is_all = count == len(finished.outgoing)
            # All records before the first remaining one are finished, with or without Sends.
            portion.offsets[partition] = finished.offset if is_all else finished.outgoing[count].record.offset
            if not is_all:
                break
        return portion

    def remove(self, portion: Portion) -> None:
        """A transaction with this portion was committed."""
        for partition, count in portion.counts.items():
            finished = self._finished[partition]
            del finished.outgoing[:count]
            if not finished.outgoing:
                del self._finished[partition]

    def has(self, send: OutgoingSend) -> bool:
        return any(each is send for finished in self._finished.values() for each in finished.outgoing)

    def present(self, sends: Sequence[OutgoingSend]) -> list[OutgoingSend]:
        """Those of the Sends that the outbox has, for long lists."""
        present = {id(each) for finished in self._finished.values() for each in finished.outgoing}
        return [each for each in sends if id(each) in present]

    def replace(self, record: OutgoingRecord, letter: Send) -> int:
        """Replace all Sends of the record by the letter. How many Sends come before it."""
        before = 0
        for finished in self._finished.values():
            outgoing = finished.outgoing
            at = next((n for n, each in enumerate(outgoing) if each.record is record), None)
            if at is not None:
                kept = [each for each in outgoing[at:] if each.record is not record]
                replacement = _tied(letter, OutgoingRecord(record.offset, refused_letter(letter)))
                finished.outgoing = [*outgoing[:at], replacement, *kept]
                return before + at
            before += len(outgoing)
        raise AssertionError("the record is not in the outbox")

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._finished.pop(each, None)


def _whole_records(sends: Sequence[OutgoingSend], sends_max: int, *, is_first: bool) -> int:
    """How many of the first Sends make whole records, within the limit unless the first record alone exceeds it."""
    if len(sends) <= sends_max:
        return len(sends)
    end = max(sends_max, 1 if is_first else 0)
    if end and is_first and sends[end - 1].record is sends[0].record:
        while end < len(sends) and sends[end].record is sends[0].record:
            end += 1
        return end
    while end and sends[end].record is sends[end - 1].record:
        end -= 1
    return end
