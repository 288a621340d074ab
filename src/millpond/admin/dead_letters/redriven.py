"""Which dead letters have been redriven, exactly: marks in a small compacted topic beside the dead letters.

A log cannot delete single records and a filter takes any of them, so one committed offset cannot say what is done.
The topic `<dead letters>.redriven` has one record for each thousand offsets of a partition that has something done:

    key    0/17                                       partition 0, offsets 17000 to 17999
    value  {"topic_id": "…", "redriven": [[17000, 17499], [17502, 17502]]}

A redrive writes it in the transaction that sends the records, so that both happen or neither does. A dead-letter
topic that was deleted and recreated has another id; marks of the old one do not count.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from uuid import UUID

from millpond.admin.dead_letters.letters import LetterId, LetterTopic, marks_topic
from millpond.admin.errors import Leaderless, Refused
from millpond.admin.offsets import bounds_of
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.errors import ClusterError
from millpond.remote.reader import read_records
from millpond.remote.topics import TopicExists, create_topic

PAGE_OFFSETS: Final = 1000

Page = tuple[int, int]
"""A partition and the index of a block of a thousand offsets in it."""


class Redriven:
    """The set of redriven letters, one bit each."""

    def __init__(self, topic_id: str = "", *, is_known: bool = True) -> None:
        self.topic_id = topic_id
        self.is_known = is_known
        """False: the marks cannot be read now, so any letter may have been redriven."""
        self._pages: dict[Page, int] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Redriven):
            return NotImplemented
        return self._facts() == other._facts()

    def __contains__(self, letter: LetterId) -> bool:
        partition, offset = letter
        number, bit = divmod(offset, PAGE_OFFSETS)
        return bool(self._pages.get((partition, number), 0) >> bit & 1)

    def says(self, letter: LetterId) -> bool | None:
        """Whether the letter was redriven; None if unknown."""
        return letter in self if self.is_known else None

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._pages.values())

    def add(self, letter: LetterId) -> Page:
        """Mark the letter as redriven; returns the page to rewrite."""
        partition, offset = letter
        number, bit = divmod(offset, PAGE_OFFSETS)
        page = (partition, number)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit
        return page

    def _facts(self) -> tuple[str, bool, dict[Page, int]]:
        return self.topic_id, self.is_known, {page: bits for page, bits in self._pages.items() if bits}

    def read(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the marks topic. A later record replaces an earlier one with the same key."""
        partition, _, number = key.decode().partition("/")
        page = (int(partition), int(number))
        written: Any = json.loads(value) if value is not None else {"topic_id": self.topic_id, "redriven": []}
        if written["topic_id"] == self.topic_id:
            bits = 0
            for first, last in written["redriven"]:
                if first // PAGE_OFFSETS != page[1] or last // PAGE_OFFSETS != page[1]:
                    raise ValueError(f"offsets {first} to {last} are not on page {page[1]}")
                # Set the whole range in one operation: a hostile record can repeat a full page a hundred thousand
                # times.
                bits |= ((1 << last - first + 1) - 1) << first % PAGE_OFFSETS
            self._pages[page] = bits

    def written(self, pages: Iterable[Page]) -> Iterator[tuple[bytes, bytes]]:
        """The records, as key and value, that store these pages."""
        for partition, number in sorted(pages):
            ranges = list(_ranges(self._pages[partition, number], number * PAGE_OFFSETS))
            value = json.dumps({"topic_id": self.topic_id, "redriven": ranges}, separators=(",", ":"))
            yield b"%d/%d" % (partition, number), value.encode()


def _ranges(bits: int, first: int) -> Iterator[tuple[int, int]]:
    """Runs of set bits, as first and last offset."""
    at = 0
    while bits >> at:
        rest = bits >> at
        at += (rest & -rest).bit_length() - 1
        run = bits >> at
        length = (~run & run + 1).bit_length() - 1
        yield first + at, first + at + length - 1
        at += length


def read_redriven(
    topic: LetterTopic, is_up: Callable[[], bool] = lambda: False, *, must_exist: bool = False
) -> Redriven:
    """Read which letters have been redriven; raises Leaderless if the marks cannot be read.

    If `is_up` stops the read, the result is unknown. `is_made` means the marks topic exists for certain: a broker
    that does not know it yet is asked again.
    """
    done = Redriven(_topic_id(topic.info.topic_id))
    name = marks_topic(topic.name)
    info = topic.cluster.topics([name]).get(name)
    if info is None and must_exist:
        info = topic.cluster.retrying(
            f"read what was redriven of {topic.name}", lambda: _await_topic(topic.cluster, name)
        )
    if info is not None:
        marks = TopicPartition(name, 0)
        if info.partitions[0].leader < 0:
            raise Leaderless(
                f"{name}[0] has no leader now: which letters of {topic.name} were redriven is unknown until a node "
                "with a replica is back."
            )
        bounds = bounds_of(topic.cluster, [marks], "read_committed")[marks]
        for record in read_records(
            topic.cluster, marks, *bounds, isolation="read_committed", is_up=lambda _: is_up()
        ):
            try:
                done.read(record.key or b"", record.value)
            except (ValueError, KeyError, TypeError, RecursionError):
                raise Refused(
                    f"{name}[0]@{record.offset} was not written by a redrive: something else uses topic {name}."
                ) from None
            if is_up():
                break
        done.is_known = not is_up()
    return done


def _await_topic(cluster: Cluster, name: str) -> TopicInfo:
    """Retry while a lagging broker does not know a new topic: without the marks every letter would be resent."""
    info = cluster.topics([name]).get(name)
    if info is None:
        raise ClusterError(f"topic {name} exists, but the broker that answered does not know it yet", retriable=True)
    return info


def try_read_redriven(topic: LetterTopic, is_up: Callable[[], bool] = lambda: False) -> Redriven:
    """Like `read_redriven`, but unknown instead of an error: letters can be listed without their marks.

    A redrive reports what is wrong with the marks; a list only counts.
    """
    if is_up():
        # With many topics even one request each takes long.
        return Redriven(is_known=False)
    try:
        return read_redriven(topic, is_up)
    except Refused:
        return Redriven(is_known=False)


def ensure_marks_topic(topic: LetterTopic) -> None:
    name = marks_topic(topic.name)
    if name not in topic.cluster.topics([name]):
        try:
            create_topic(topic.cluster, name, 1, settings={"cleanup.policy": "compact"})
        except TopicExists:
            # A concurrent redrive created it first.
            return
        except ClusterError as refusal:
            raise Refused(
                f"{refusal}. A redrive keeps its progress there: have an administrator create it, with one partition "
                "and cleanup.policy=compact."
            ) from refusal


def _topic_id(topic_id: UUID) -> str:
    """The id as Kafka's tools print it. It distinguishes a topic from an earlier one of the same name."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
