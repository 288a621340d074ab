"""Handles records whose value does not parse: the query fails, the row is kept with the reason, or the record goes to
the dead letters and the stream continues without it.

The cluster acknowledges dead letters before their task ends, so none is lost. A repeated task sends them again: their
headers name the origin, which identifies duplicates.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millpond.base.words import counted
from millpond.client.dead_letters import dead_letter, origin_of
from millpond.client.errors import ClientError
from millpond.client.message import Delivery, Message
from millpond.columns.parser import Parser
from millpond.remote.security import librdkafka
from millpond.spark.options import (
    BAD_ENDING,
    BAD_RECORDS,
    COMMIT_GROUP,
    DEAD_LETTER_TOPIC,
    INCLUDE_HEADERS,
    VALUE_FORMAT,
    Options,
)
from millpond.spark.parsing import FAULT, PARSED, parser_of
from millpond.spark.source.subscription import Assigned, Matching, Named, subscription_of

if TYPE_CHECKING:
    from millpond.client.producer import Producer

LOG = logging.getLogger("millpond.spark")

DELIVERY_SECONDS: Final = 120.0
GROUP_DEFAULT: Final = "spark"
HEADERS: Final = "headers"
UNACKNOWLEDGED_MAX: Final = 10_000
"""The most unacknowledged dead letters."""
ANSWER_SECONDS: Final = 150.0
"""Longer than the producer's timeout, so that its error is the one reported."""
RECORD_BYTES_MAX: Final = 128 << 20
"""A record that was read can be sent: only the cluster's limit counts."""

_producers: Final[dict[frozenset[tuple[str, str]], Producer]] = {}
"""The producers of this worker process, which Spark reuses for many tasks."""


class BadRecord(ClientError):
    """A record whose value does not parse."""


class Sieve:
    """Parses the values of one task's batches and handles bad ones as the options say."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._mode = options[BAD_RECORDS]
        self._parser: Parser | None = None if options[VALUE_FORMAT] == "raw" else parser_of(options)
        self.needs_headers: Final = self._parser is not None and self._mode == "dead_letters"
        """Whether `sift` needs headers even if the query does not."""
        self.bad_count = 0
        self._on_their_way: deque[Future[Delivery]] = deque()

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch for `sift`, split where its values may exceed a column's capacity."""
        return iter([batch]) if self._parser is None else self._parser.parts(batch)

    def sift(self, batch: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """The batch with `parsed`, and `fault` if bad rows are kept; otherwise without bad rows."""
        if self._parser is None:
            return batch
        parsed = self._parser.parse(batch.column("value"))
        self.bad_count += len(parsed.faults)
        if parsed.faults and self._mode == "fail":
            raise self._refusal(batch, topic, partition, parsed.faults)
        rows = self._query_columns(batch).append_column(PARSED, parsed.rows)
        if self._mode == "null":
            return rows.append_column(FAULT, _reasons(parsed.faults, len(batch)))
        if not parsed.faults:
            return rows
        self._bury(batch, topic, partition, parsed.faults)
        return rows.filter(_all_but([row for row, _ in parsed.faults], len(batch)))

    def flush(self) -> None:
        """Wait until every dead letter is acknowledged; SendFailed or Timeout otherwise."""
        while self._on_their_way:
            self._on_their_way.popleft().result(ANSWER_SECONDS)
        if self.bad_count and self._mode == "dead_letters":
            LOG.warning("%s did not parse: see the dead letters", counted(self.bad_count, "record"))
            self.bad_count = 0

    def _query_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._options[INCLUDE_HEADERS] or HEADERS not in batch.schema.names:
            return batch
        return batch.drop_columns([HEADERS])

    def _refusal(self, batch: pa.RecordBatch, topic: str, partition: int, faults: list[tuple[int, str]]) -> BadRecord:
        row, reason = faults[0]
        origin = f"{topic}[{partition}]@{batch.column('offset')[row].as_py()}"
        more = f" ({len(faults) - 1} more of {len(batch)} are bad)" if len(faults) > 1 else ""
        return BadRecord(
            f"{origin} does not parse as {self._options[VALUE_FORMAT]}: {reason}{more}. Correct valueSchema, or set "
            "badRecords=null to keep such rows with the reason in the column `fault`, or badRecords=dead_letters to "
            f"send them to {self._dead_letter_topic(topic)} and go on"
        )

    def _dead_letter_topic(self, topic: str) -> str:
        return self._options.get(DEAD_LETTER_TOPIC) or topic + BAD_ENDING

    def _bury(self, batch: pa.RecordBatch, topic: str, partition: int, faults: list[tuple[int, str]]) -> None:
        target = self._dead_letter_topic(topic)
        if _is_read(self._options, target):
            raise BadRecord(
                f"the query reads {target}, where its own dead letters would go, without end: name another topic "
                "with deadLetterTopic, or read fewer"
            )
        producer = producer_for(self._options.kafka)
        group = self._options.get(COMMIT_GROUP) or GROUP_DEFAULT
        now_ms = time.time_ns() // 1_000_000
        for message, (_, reason) in zip(_messages(batch, topic, partition, faults), faults, strict=True):
            letter = dead_letter(
                message,
                BadRecord(reason),
                to=target,
                origin=origin_of(message),
                attempts=1,
                group=group,
                now_ms=now_ms,
            )
            self._on_their_way.append(producer.send(target, letter.value, letter.key, headers=letter.headers))
            if len(self._on_their_way) > UNACKNOWLEDGED_MAX:
                self._on_their_way.popleft().result(ANSWER_SECONDS)


def producer_for(settings: Mapping[str, str]) -> Producer:
    """One for each cluster, cached: a task should not wait for a new connection."""
    from millpond.client.producer import Producer

    key = frozenset(settings.items())
    if key not in _producers:
        own: dict[str, Any] = {**librdkafka(settings), "message.max.bytes": RECORD_BYTES_MAX}
        if "client.id" in settings:
            own["client.id"] = settings["client.id"]
        _producers[key] = Producer(
            settings["bootstrap.servers"],
            acks="all",
            delivery_timeout_s=DELIVERY_SECONDS,
            create_topics=True,  # the dead-letter topic
            settings=own,
        )
    return _producers[key]


def _is_read(options: Options, topic: str) -> bool:
    """Whether the query reads this topic."""
    match subscription_of(options):
        case Named(topics):
            return topic in topics
        case Matching(pattern):
            return pattern.fullmatch(topic) is not None
        case Assigned(partitions):
            return any(partition.topic == topic for partition in partitions)


def _messages(batch: pa.RecordBatch, topic: str, partition: int, faults: list[tuple[int, str]]) -> Iterator[Message]:
    """The bad records with all their fields."""
    bad = batch.take(pa.array([row for row, _ in faults], pa.int64()))
    times = pc.divide(bad.column("timestamp").cast(pa.int64()), pa.scalar(1000, pa.int64()))
    columns = [bad.column("offset"), times, bad.column("key"), bad.column("value"), bad.column(HEADERS)]
    for offset, time_ms, key, value, headers in zip(*(each.to_pylist() for each in columns), strict=True):
        own = tuple((each["key"], each["value"]) for each in headers or ())
        yield Message(topic, partition, offset, time_ms, key, value, own)


def _reasons(faults: list[tuple[int, str]], rows: int) -> pa.StringArray:
    reasons: list[str | None] = [None] * rows
    for row, reason in faults:
        reasons[row] = reason.encode(errors="replace").decode()
    return pa.array(reasons, pa.string())


def _all_but(bad: list[int], rows: int) -> pa.BooleanArray:
    keep = bytearray(b"\1") * rows
    for row in bad:
        keep[row] = 0
    return pa.Array.from_buffers(pa.uint8(), rows, [None, pa.py_buffer(keep)]).cast(pa.bool_())
