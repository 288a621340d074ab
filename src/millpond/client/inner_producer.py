"""One producer of librdkafka with the thread that turns its delivery reports into futures.

Every report that the thread takes wants the interpreter's lock, which a program that sends in a loop holds most of
the time. So while there is much to send, the sender itself reads the reports, many at a time, and the thread steps
back.
"""

from __future__ import annotations

import time
from threading import Condition, Lock, Thread
from typing import Any, Literal, TypeAlias

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage
from confluent_kafka import Producer as RawProducer

from millpond.client.connection import LOG
from millpond.client.errors import SendFailed, advice_on
from millpond.client.message import Delivery, known
from millpond.client.reach import Reach
from millpond.client.sent import Sent

Acks: TypeAlias = Literal["all", 1, 0]

POLL_SECONDS = 0.1
STEP_BACK_SECONDS = 0.005
SENDS_PER_READ = 200
FAILURES_EVERY_SECONDS = 5.0
"""Between two words about records that failed and that nobody waits for."""


class InnerProducer:
    """The way of all records with one level of acknowledgement."""

    def __init__(self, raw: RawProducer, reach: Reach) -> None:
        self.raw = raw
        self.reach = reach
        self._failures = 0
        """Records that failed and that nobody had asked for, since the last word about them."""
        self._failure = ""
        self._failures_at = 0.0
        self._room = Condition()
        self._waiting = 0
        self._closing = False
        self._sends = 0
        self._unreported = 0
        """Records without a report. What librdkafka counts has its errors in it, too."""
        self._counting = Lock()
        # A daemon, so that a program which forgets to close can still end.
        self._thread = Thread(target=self._serve, name="millpond-delivery", daemon=True)
        self._thread.start()

    def produce(
        self,
        future: Sent,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int,
    ) -> None:
        """BufferError when there is no room."""

        def delivered(error: KafkaError | None, message: RawMessage) -> None:
            with self._counting:
                self._unreported -= 1
            if self._waiting:
                with self._room:
                    self._room.notify_all()
            if error is not None:
                failure = SendFailed(f"{topic}: {advice_on(error)}", code=error.code(), retriable=error.retriable())
                if future.fail(failure):
                    self._failures += 1
                    self._failure = self._failure or str(failure)
                return
            offset = known(message.offset())
            future.fulfil(
                Delivery(topic, known(message.partition()), offset if offset >= 0 else None, message.timestamp()[1])
            )

        options: dict[str, Any] = {"on_delivery": delivered}
        if partition is not None:
            options["partition"] = partition
        if headers:
            options["headers"] = headers
        if timestamp_ms:
            options["timestamp"] = timestamp_ms
        with self._counting:
            self._unreported += 1
        try:
            self.raw.produce(topic, value, key, **options)
        except BaseException:
            with self._counting:
                self._unreported -= 1
            raise
        self._sends += 1
        if self._sends % SENDS_PER_READ == 0:
            self.raw.poll(0)

    def wait_for_room(self, deadline: float) -> bool:
        """Wait until some record has left; False when the deadline came first."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        with self._room:
            self._waiting += 1
            try:
                # Room may have come between the failed try and this lock: look again soon.
                self._room.wait(min(left, 0.05))
            finally:
                self._waiting -= 1
        return True

    def flush(self, timeout_s: float) -> int:
        """How many records are left unacknowledged."""
        deadline = time.monotonic() + timeout_s
        self.raw.flush(timeout_s)
        # The last report may be in the hands of the serving thread.
        while self._unreported and (left := deadline - time.monotonic()) > 0:
            self.raw.flush(min(left, 0.05))
        return self._unreported

    def close(self) -> None:
        """Fail what is left and end the thread."""
        if len(self.raw):
            self.raw.purge()
        self._closing = True
        self._thread.join()
        self.raw.poll(0)
        self._tell_failures()

    def _serve(self) -> None:
        seen = 0
        while not self._closing:
            sends, seen = self._sends - seen, self._sends
            if sends > SENDS_PER_READ:
                time.sleep(STEP_BACK_SECONDS)
            else:
                self.raw.poll(POLL_SECONDS)
            self.reach.look()
            if self._failures and time.monotonic() >= self._failures_at:
                self._tell_failures()
        self.raw.poll(0)

    def _tell_failures(self) -> None:
        """Records that were sent and never looked after must not be lost without a word."""
        count, self._failures = self._failures, 0
        if count:
            LOG.warning("%s not sent and nobody waits for the outcome: %s", _counted(count), self._failure)
        self._failure, self._failures_at = "", time.monotonic() + FAILURES_EVERY_SECONDS


def _counted(count: int) -> str:
    return "1 record was" if count == 1 else f"{count:,} records were"
