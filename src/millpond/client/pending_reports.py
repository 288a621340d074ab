"""The records of one librdkafka producer without a delivery report, and failures that nothing waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Final, Protocol, TypeAlias

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from millpond.client.connection import log_raised
from millpond.client.errors import SendFailed, send_failure
from millpond.client.message import Delivery, make_delivery
from millpond.client.reachability import Reachability

ANY_PARTITION: Final = -1
"""librdkafka chooses by the key."""

SENDS_PER_READ: Final = 100
"""Sends between two times that a sender reads the reports itself."""


class Record(Protocol):
    """A sent record, which takes its delivery report on the thread that called librdkafka."""

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None: ...


OnReport: TypeAlias = "Callable[[SendFailed | None], None]"
"""Called with None when the record is acknowledged, else with the failure."""


class ReportsYielded(Exception):
    """Raised through librdkafka, which then leaves the remaining reports to the next caller."""


class PendingReports:
    """A set instead of a count: removing from a set is atomic, so no lock is needed per record."""

    def __init__(self, reachability: Reachability) -> None:
        self.reachability = reachability
        self.records: set[Record] = set()
        self.sends = 0
        """Roughly how many were given to librdkafka; not locked."""
        self.server = 0
        """The id of the serving thread while it reads reports."""
        self.should_yield = False
        """Another thread has begun to read. The two would contend for the GIL for every report, so the serving thread
        leaves the rest to it."""
        self.is_closing = False
        """No other thread reads reports any longer."""
        self._failures = 0
        """Failed records that nothing waited for, since they were last logged."""
        self._failure = ""
        self._readers: set[int] = set()
        """Threads inside a librdkafka call that delivers reports."""

    @property
    def has_failures(self) -> bool:
        return self._failures > 0

    def note_failure(self, failure: SendFailed) -> None:
        self._failures += 1
        self._failure = self._failure or str(failure)

    def take_failures(self) -> tuple[int, str]:
        """How many failed since the last call, and the first error."""
        taken = self._failures, self._failure
        self._failures, self._failure = 0, ""
        return taken

    def request_yield(self) -> None:
        """The calling thread is about to read reports."""
        self.should_yield = self.server != 0

    def yield_reports(self) -> None:
        """Called after a report while `should_yield` is set."""
        if get_ident() == self.server:
            self.should_yield = False
            raise ReportsYielded

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wraps a librdkafka call that delivers reports."""
        me = get_ident()
        self._readers.add(me)
        try:
            yield
        finally:
            self._readers.discard(me)

    def is_reading(self) -> bool:
        """Whether this thread is inside such a call: in a report, an `error_cb`, or what interrupts those.

        It must not read reports then: librdkafka's binding aborts the process on a nested call.
        """
        return bool(self._readers) and get_ident() in self._readers


class CallbackRecord:
    """A record without a future, which costs half as much as a SendFuture with a callback."""

    __slots__ = ("_on_report", "_pending_reports", "_topic")

    def __init__(self, on_report: OnReport, topic: str, pending_reports: PendingReports) -> None:
        self._on_report = on_report
        self._topic = topic
        self._pending_reports = pending_reports

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        pending_reports = self._pending_reports
        pending_reports.records.discard(self)
        try:
            self._on_report(None if error is None else failure(self._topic, error))
        except BaseException as raised:
            log_raised("the callback of a record", raised)
        if pending_reports.should_yield:
            pending_reports.yield_reports()


Location = tuple[int | None, int | None, int]
"""Partition, offset and timestamp from librdkafka."""


def location_of(message: RawMessage) -> Location:
    return message.partition(), message.offset(), message.timestamp()[1]


def delivery(topic: str, where: Location) -> Delivery:
    partition, offset, timestamp_ms = where
    written_at = offset if offset is not None and offset >= 0 else None
    return make_delivery(topic, -1 if partition is None else partition, written_at, timestamp_ms)


def failure(topic: str, error: KafkaError) -> SendFailed:
    return send_failure(topic, error, retriable=error.retriable())
