"""One producer of librdkafka with the thread that turns its delivery reports into futures.

Every report that the thread takes wants the interpreter's lock, which a program that sends in a loop holds most of
the time. So while there is much to send, the sender itself reads the reports, many at a time, and the thread steps
back, with reports in hand, too; so it does while somebody flushes, who reads them.
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
from millpond.client.reach import Reach
from millpond.client.sent import PlainSend, plain_send
from millpond.client.unreported import ANY_PARTITION, SENDS_PER_READ, Record, StepBack, Unreported

Acks: TypeAlias = Literal["all", 1, 0]

POLL_SECONDS = 0.1
STEP_BACK_SECONDS = 0.005
EXIT_SECONDS = 10.0
"""How long a program that ends waits for records of producers that were not closed."""
FAILURES_EVERY_SECONDS = 5.0
"""Between two words about records that failed and that nobody waits for."""


class InnerProducer:
    """The way of all records with one level of acknowledgement."""

    def __init__(self, raw: RawProducer, reach: Reach) -> None:
        self.raw = raw
        self.reach = reach
        self.unreported = Unreported(reach)
        """Those without a report. What librdkafka counts has its errors in it, too."""
        self._failures_at = 0.0
        self._room = Condition()
        self._waiting = 0
        self._flushes: set[object] = set()
        """Who flush now. A set: what interrupts one of them between two steps leaves none behind."""
        self._is_over = False
        """An error has ended all sending."""
        # A daemon, so that a program which forgets to close can still end.
        self._thread = Thread(target=self._serve, name="millpond-delivery", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def plain_send(self) -> PlainSend:
        """What does as `produce` does, for a record without anything special."""
        return plain_send(self.raw, self.unreported, self._read_beside)

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
        """BufferError when there is no room."""
        unreported = self.unreported
        unreported.records.add(record)
        try:
            # Arguments without names: librdkafka's binding reads them in half of the time.
            if headers or timestamp_ms:
                self.raw.produce(topic, value, key, partition, record, None, timestamp_ms, headers)  # type: ignore[arg-type]
            else:
                self.raw.produce(topic, value, key, partition, record)
        except BaseException:
            unreported.records.discard(record)
            raise
        unreported.sends += 1
        if unreported.sends % SENDS_PER_READ == 0 or unreported.is_closing:
            self._read_beside()

    def _read_beside(self) -> None:
        """The sender reads reports; of a record that comes after the end there will be no other."""
        if self.unreported.is_closing:
            self.raw.purge()
        if not self.unreported.is_reading():
            self.unreported.want_back()
            self._read(0)

    def wait_for_room(self, deadline: float) -> bool:
        """Wait until some record has left; False when the deadline came first."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        with self._room:
            self._waiting += 1
            try:
                # Room may have come between the failed try and this lock: look again soon. Who flushes tells nobody.
                self._room.wait(min(left, STEP_BACK_SECONDS if self._flushes else 0.05))
            finally:
                self._waiting -= 1
        return True

    def flush(self, timeout_s: float) -> int:
        """How many records are left unacknowledged."""
        deadline = time.monotonic() + timeout_s
        flushing = object()
        try:
            self._flushes.add(flushing)
            self.unreported.want_back()
            self._ask(self.raw.flush, timeout_s)
            # The last report may be in the hands of the serving thread.
            while self.unreported.records and (left := deadline - time.monotonic()) > 0:
                self._ask(self.raw.flush, min(left, 0.05))
        finally:
            self._flushes.discard(flushing)
        return len(self.unreported.records)

    def close(self) -> None:
        """Fail what is left and end the thread."""
        # First: what is sent before anybody could see this is purged here, and what is sent later by its sender.
        self.unreported.is_closing = True
        _OPEN.discard(self)
        if len(self.raw):
            self.raw.purge()
        self._thread.join()
        self._read(0)
        self._tell_failures()

    def _serve(self) -> None:
        seen = 0
        while not self.unreported.is_closing:
            sends, seen = self.unreported.sends - seen, self.unreported.sends
            if sends >= SENDS_PER_READ or self._flushes:
                time.sleep(STEP_BACK_SECONDS)
            else:
                self._read_and_step_back()
            if self._is_over and self.unreported.records:
                # One that came in just after the error would stay until its time is over: librdkafka looks once.
                self.raw.purge(in_flight=False)
            self.reach.look()
            if self.unreported.has_failures and time.monotonic() >= self._failures_at:
                self._tell_failures()
        self._read(0)

    def _read_and_step_back(self) -> None:
        """The serving thread reads reports until there is none, or another thread reads them."""
        unreported = self.unreported
        unreported.is_wanted_back = False
        unreported.server = get_ident()
        try:
            self._read(POLL_SECONDS)
        finally:
            unreported.server = 0
            unreported.is_wanted_back = False

    def _read(self, timeout_s: float) -> None:
        """Reports become outcomes. Who waits for room hears of it once, not for each record that has left."""
        self._ask(self.raw.poll, timeout_s)
        if self._waiting:
            with self._room:
                self._room.notify_all()

    def _ask(self, librdkafka: Callable[[float], int], timeout_s: float) -> None:
        """A call that gives reports. What it raises leaves those that follow to the next who asks."""
        try:
            with self.unreported.reading():
                librdkafka(timeout_s)
        except StepBack:
            pass
        except KafkaException as fatal:
            # Raised once, to whoever asks. Each record hears of it, too, and that is still to be read.
            self._is_over = True
            is_expected = fatal.args[0].code() == KafkaError._GAPLESS_GUARANTEE
            # Whoever asks for that guarantee goes on with another producer.
            (LOG.debug if is_expected else LOG.error)("a producer can no longer send: %s", advice_on(fatal.args[0]))

    def _tell_failures(self) -> None:
        """Records that were sent and never looked after must not be lost without a word."""
        count, first = self.unreported.take_failures()
        if count:
            LOG.warning("%s not sent and nobody waits for the outcome: %s", _counted(count), first)
        self._failures_at = time.monotonic() + FAILURES_EVERY_SECONDS


_OPEN: set[InnerProducer] = set()
"""Those of this process that are not closed."""


def _flush_at_exit() -> None:
    """A program that ends without `close` must not lose what it has sent, or not without a word."""
    deadline = time.monotonic() + EXIT_SECONDS
    for inner in list(_OPEN):
        waiting = len(inner.unreported.records)
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
        inner._tell_failures()


atexit.register(_flush_at_exit)
if hasattr(os, "register_at_fork"):
    # In a child they are the parent's to send.
    os.register_at_fork(after_in_child=_OPEN.clear)


def _counted(count: int) -> str:
    return "1 record was" if count == 1 else f"{count:,} records were"
