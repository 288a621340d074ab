"""Which dead letters have been redriven, exactly: marks in a small compacted topic beside the dead letters.

A log cannot delete single records and a filter takes any of them, so one committed offset cannot say what is done.
The topic `<dead letters>.redriven` has one record for each thousand offsets of a partition that has something done:

    key    0/17                                       partition 0, offsets 17000 to 17999
    value  {"topic_id": "…", "redriven": [[17000, 17499], [17502, 17502]]}

A redrive writes it in the transaction that sends the records, so that both happen or neither does. A dead-letter
topic that was deleted and made anew has another id; marks of the old one do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from millpond.cli import admin as topics
from millpond.cli.connect import ANSWER_SECONDS, Cluster, topics_of
from millpond.cli.dlq_read import Place, committed_bounds, messages_between
from millpond.cli.errors import Failed

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

SUFFIX: Final = ".redriven"
PAGE_OFFSETS: Final = 1000

Page = tuple[int, int]
"""A partition and the number of a thousand offsets in it."""


class Redriven:
    """The set of letters that have been redriven: one bit for each."""

    def __init__(self, topic_id: str = "") -> None:
        self.topic_id = topic_id
        self._pages: dict[Page, int] = {}

    def __contains__(self, place: Place) -> bool:
        partition, offset = place
        number, bit = divmod(offset, PAGE_OFFSETS)
        return bool(self._pages.get((partition, number), 0) >> bit & 1)

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._pages.values())

    def add(self, place: Place) -> Page:
        """Mark it; the page that has to be written again."""
        partition, offset = place
        number, bit = divmod(offset, PAGE_OFFSETS)
        page = (partition, number)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit
        return page

    def read(self, key: bytes, value: bytes | None) -> None:
        """Take over what a record of the topic says. Later records of a key replace earlier ones."""
        partition, _, number = key.decode().partition("/")
        page = (int(partition), int(number))
        told: Any = json.loads(value) if value is not None else {"topic_id": self.topic_id, "redriven": []}
        if told["topic_id"] == self.topic_id:
            self._pages[page] = 0
            for first, last in told["redriven"]:
                for offset in range(first, last + 1):
                    self.add((page[0], offset))

    def written(self, pages: Iterable[Page]) -> Iterator[tuple[bytes, bytes]]:
        """The records, as key and value, that say what is done on these pages."""
        for partition, number in sorted(pages):
            ranges = list(_ranges(self._pages[partition, number], number * PAGE_OFFSETS))
            value = json.dumps({"topic_id": self.topic_id, "redriven": ranges}, separators=(",", ":"))
            yield b"%d/%d" % (partition, number), value.encode()


def _ranges(bits: int, first: int) -> Iterator[tuple[int, int]]:
    """The runs of ones, as first and last offset."""
    at = 0
    while bits >> at:
        rest = bits >> at
        at += (rest & -rest).bit_length() - 1
        run = bits >> at
        length = (~run & run + 1).bit_length() - 1
        yield first + at, first + at + length - 1
        at += length


def state_topic(topic: str) -> str:
    return topic + SUFFIX


def read_redriven(cluster: Cluster, admin: AdminClient, topic: str) -> Redriven:
    """What is done so far. Everything is waiting when nothing was ever redriven."""
    found = Redriven(_topic_id(admin, topic))
    name = state_topic(topic)
    if name in topics_of(admin):
        for message in messages_between(cluster, committed_bounds(admin, [(name, 0)])):
            try:
                found.read(message.key or b"", message.value)
            except (ValueError, KeyError, TypeError):
                raise Failed(
                    f"{message.place()} is not what a redrive writes: topic {name} is used by something else."
                ) from None
    return found


def ensure_state_topic(admin: AdminClient, topic: str) -> None:
    name = state_topic(topic)
    if name not in topics_of(admin):
        try:
            topics.create(admin, name, 1, -1, {"cleanup.policy": "compact"})
        except Failed as refusal:
            raise Failed(
                f"{refusal.message} A redrive keeps its progress there: let somebody create it who may, with one "
                "partition and cleanup.policy=compact."
            ) from None


def _topic_id(admin: AdminClient, topic: str) -> str:
    """Tells a topic from one of the same name before it; empty on clusters that are too old to know."""
    from confluent_kafka import KafkaException, TopicCollection

    futures = admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_SECONDS)
    try:
        return str(futures[topic].result().topic_id)
    except KafkaException:
        return ""
