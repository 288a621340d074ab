"""One dead letter: the record, with the headers that docs/dead-letters.md describes."""

from __future__ import annotations

from enum import IntEnum

from millpond.base import names
from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.failures import described
from millpond.coordinators.shares.state_batches import Failure
from millpond.wire.records import Record

Headers = tuple[tuple[str, bytes | None], ...]


class Shortening(IntEnum):
    """What is left out of a letter that is too large for its topic; each step also leaves out what is before it."""

    WHOLE = 0
    SHORT_MESSAGE = 1
    WITHOUT_VALUE = 2
    WITHOUT_HEADERS = 3


class Sender(NamedTuple):
    """Whose letters these are."""

    topic: str
    partition: int
    group: str
    copies_records: bool


def letter_of(
    record: Record, deliveries: int, failure: Failure | None, sender: Sender, now_ms: int, shortening: Shortening
) -> Record:
    """The record of the dead-letter topic, with the offset 0. The number of attempts is that of the deliveries."""
    error_type, error_message = described(failure, deliveries)
    if shortening >= Shortening.SHORT_MESSAGE:
        short = error_message.encode(errors="replace")[: names.DLQ_MESSAGE_BYTES_SHORT]
        error_message = short.decode(errors="ignore")
    added: list[tuple[str, bytes | None]] = [
        (names.DLQ_TOPIC, sender.topic.encode()),
        (names.DLQ_PARTITION, b"%d" % sender.partition),
        (names.DLQ_OFFSET, b"%d" % record.offset),
        (names.DLQ_TIMESTAMP, b"%d" % record.timestamp),
        (names.DLQ_ATTEMPTS, b"%d" % deliveries),
        (names.DLQ_ERROR_TYPE, error_type.encode(errors="replace")),
        (names.DLQ_ERROR_MESSAGE, error_message.encode(errors="replace")),
        (names.DLQ_GROUP, sender.group.encode()),
        (names.DLQ_TIME, b"%d" % now_ms),
        (names.DLQ_REDRIVEN, b"%d" % _redriven(record.headers)),
    ]
    own = tuple(each for each in record.headers if not each[0].startswith(names.DLQ_PREFIX))
    key, value = record.key, record.value
    if not sender.copies_records:
        key = None
    if not sender.copies_records or (shortening >= Shortening.WITHOUT_VALUE and value is not None):
        added.append((names.DLQ_VALUE_OMITTED, b"%d" % len(value or b"")))
        value = None
    if own and (not sender.copies_records or shortening >= Shortening.WITHOUT_HEADERS):
        added.append((names.DLQ_HEADERS_OMITTED, b"%d" % len(own)))
        own = ()
    return Record(0, now_ms, key, value, (*own, *added))


def _redriven(headers: Headers) -> int:
    try:
        return int(dict(headers).get(names.DLQ_REDRIVEN) or b"")
    except ValueError:
        return 0
