"""One librdkafka producer with the thread that resolves futures from its delivery reports.

The thread needs the GIL for every report, and a program that sends in a loop holds it most of the time. So while many
records are sent, the sender reads the reports itself, many at a time, and the thread yields, even with reports left;
it also yields while a flush reads them.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from threading import Condition, Thread, get_ident
from typing import Literal, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as RawProducer

from millpond.client.connection import LOG
from millpond.client.errors import advice_on
from millpond.client.pending_reports import ANY_PARTITION, SENDS_PER_READ, PendingReports, Record, ReportsYielded
from millpond.client.reachability import Reachability
from millpond.client.send_future import PlainSend, plain_send

Acks: TypeAlias = Literal["all", 1, 0]

POLL_SECONDS = 0.1
YIELD_SECONDS = 0.005
EXIT_SECONDS = 10.0
"""How long an exiting program waits for the records of producers that were not closed."""
FAILURES_EVERY_SECONDS = 5.0
"""Between log lines about failed records whose futures nothing waits for."""


class InnerProducer:
    """Sends the records of one acknowledgement level."""

    def __init__(self, raw: RawProducer, reachability: Reachability) -> None:
        self.raw = raw
        self.reachability = reachability
        self.pending_reports = PendingReports(reachability)
        """Records without a report. librdkafka's own count includes errors."""
        self._failures_at = 0.0
        self._room = Condition()
        self._waiting = 0
        self._flushes: set[object] = set()
        """Flushes in progress. A set, because an interrupt between two steps leaves no miscount."""
        self._is_over = False
        """A fatal error has ended all sending."""
        # A daemon thread, so that a program that forgets to close can still exit.
        self._thread = Thread(target=self._serve, name="millpond-delivery", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def plain_send(self) -> PlainSend:
        """A faster `produce` for a record without headers, partition or timestamp."""
        return plain_send(self.raw, self.pending_reports, self._read_as_sender)

    def produce(
        self,
        record: Record,
        topic: str,
        value: bytes | None,
        key: str | bytes | None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int = ANY_PARTITION,
        timestamp_ms: int = 0,
    ) -> None:
        """BufferError if the buffer is full."""
        pending_reports = self.pending_reports
        pending_reports.records.add(record)
        try:
            # Positional arguments: librdkafka's binding reads them in half the time.
            if headers or timestamp_ms:
                self.raw.produce(topic, value, key, partition, record, None, timestamp_ms, headers)  # type: ignore[arg-type]
            else:
                self.raw.produce(topic, value, key, partition, record)
        except BaseException:
            pending_reports.records.discard(record)
            raise
        pending_reports.sends += 1
        if pending_reports.sends % SENDS_PER_READ == 0 or pending_reports.is_closing:
            self._read_as_sender()

    def _read_as_sender(self) -> None:
        """Read reports on the sending thread; after `close` no other thread would."""
        if self.pending_reports.is_closing:
            self.raw.purge()
        if not self.pending_reports.is_reading():
            self.pending_reports.request_yield()
            self._read(0)

    def wait_for_room(self, deadline: float) -> bool:
        """Wait until a record has left the buffer; False at the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        with self._room:
            self._waiting += 1
            try:
                # Room may have appeared between the failed attempt and this lock, and a flush does not notify.
                self._room.wait(min(left, YIELD_SECONDS if self._flushes else 0.05))
            finally:
                self._waiting -= 1
        return True

    def flush(self, timeout_s: float) -> int:
        """How many records are left unacknowledged."""
        deadline = time.monotonic() + timeout_s
        flushing = object()
        try:
            self._flushes.add(flushing)
            self.pending_reports.request_yield()
            self._call_librdkafka(self.raw.flush, timeout_s)
            # The serving thread may be handling the last report.
            while self.pending_reports.records and (left := deadline - time.monotonic()) > 0:
                self._call_librdkafka(self.raw.flush, min(left, 0.05))
        finally:
            self._flushes.discard(flushing)
        return len(self.pending_reports.records)

    def close(self) -> None:
        """Fail the remaining records and end the thread."""
        # Set first: records sent before it is visible are purged here, later ones by their sender.
        self.pending_reports.is_closing = True
        _OPEN.discard(self)
        if len(self.raw):
            self.raw.purge()
        self._thread.join()
        self._read(0)
        self._log_failures()

    def _serve(self) -> None:
        seen = 0
        while not self.pending_reports.is_closing:
            sends, seen = self.pending_reports.sends - seen, self.pending_reports.sends
            if sends >= SENDS_PER_READ or self._flushes:
                time.sleep(YIELD_SECONDS)
            else:
                self._read_reports()
            if self._is_over and self.pending_reports.records:
                # A record that arrived just after the error would wait for its timeout: librdkafka checks once.
                self.raw.purge(in_flight=False)
            self.reachability.probe()
            if self.pending_reports.has_failures and time.monotonic() >= self._failures_at:
                self._log_failures()
        self._read(0)

    def _read_reports(self) -> None:
        """Read reports on the serving thread until there are none or another thread reads them."""
        pending_reports = self.pending_reports
        pending_reports.should_yield = False
        pending_reports.server = get_ident()
        try:
            self._read(POLL_SECONDS)
        finally:
            pending_reports.server = 0
            pending_reports.should_yield = False

    def _read(self, timeout_s: float) -> None:
        """Resolve futures, then notify those waiting for room once, not once per record."""
        self._call_librdkafka(self.raw.poll, timeout_s)
        if self._waiting:
            with self._room:
                self._room.notify_all()

    def _call_librdkafka(self, librdkafka: Callable[[float], int], timeout_s: float) -> None:
        """A call that delivers reports. If it raises, the remaining reports go to the next caller."""
        try:
            with self.pending_reports.reading():
                librdkafka(timeout_s)
        except ReportsYielded:
            pass
        except KafkaException as fatal:
            # Raised once, to the current caller. Each record's own report is still to be read.
            self._is_over = True
            is_expected = fatal.args[0].code() == KafkaError._GAPLESS_GUARANTEE
            # OrderedSends asks for that guarantee and continues with a new producer.
            (LOG.debug if is_expected else LOG.error)("a producer can no longer send: %s", advice_on(fatal.args[0]))

    def _log_failures(self) -> None:
        """Records whose future is never read must not be lost silently."""
        count, first = self.pending_reports.take_failures()
        if count:
            LOG.warning("%s not sent and nothing waits for the outcome: %s", _counted(count), first)
        self._failures_at = time.monotonic() + FAILURES_EVERY_SECONDS


_OPEN: set[InnerProducer] = set()
"""The open producers of this process."""


def _flush_at_exit() -> None:
    """A program that exits without `close` must not lose records silently."""
    deadline = time.monotonic() + EXIT_SECONDS
    for inner in list(_OPEN):
        waiting = len(inner.pending_reports.records)
        if not waiting:
            continue
        LOG.warning(
            "a producer was not closed and %s not acknowledged yet: waiting up to %g s; use `with Producer()`, or "
            "call close()",
            _counted(waiting),
            EXIT_SECONDS,
        )
        left = inner.flush(max(deadline - time.monotonic(), 0.0))
        if left:
            LOG.error("the program ends and %s not acknowledged: they may be lost", _counted(left))
        inner._log_failures()


atexit.register(_flush_at_exit)
if hasattr(os, "register_at_fork"):
    # After a fork the parent sends them.
    os.register_at_fork(after_in_child=_OPEN.clear)


def _counted(count: int) -> str:
    return "1 record was" if count == 1 else f"{count:,} records were"
