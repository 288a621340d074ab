"""The records of one producer of librdkafka that have no report yet, and those that failed and nobody had asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Final, Protocol

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from millpond.client.errors import SendFailed, send_failure
from millpond.client.message import Delivery, made_delivery
from millpond.client.reach import Reach

ANY_PARTITION: Final = -1
"""librdkafka chooses by the key."""

SENDS_PER_READ: Final = 100
"""Between two times that a sender reads the reports itself."""


class Record(Protocol):
    """A record that was sent: whoever has its outcome in the end."""

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        """librdkafka's word about it, on the thread that asked librdkafka."""
        ...


class StepBack(Exception):
    """Raised through librdkafka, which then leaves the reports that are still to be read to the next who asks."""


class Unreported:
    """A set and not a count: taking out of a set is one step, so that no lock is needed for each record."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.records: set[Record] = set()
        self.sends = 0
        """How many were given to librdkafka: about, as threads do not wait for each other to count."""
        self.server = 0
        """The thread that serves, while it reads reports."""
        self.is_wanted_back = False
        """Somebody else has begun to read: for each report the two would take the interpreter's lock from each other,
        and on a busy machine each waits for the other to be run at all. So the serving thread leaves the rest."""
        self.is_closing = False
        """Nobody else reads reports any more."""
        self._failures = 0
        """Records that failed and that nobody had asked for, since the last word about them."""
        self._failure = ""
        self._readers: set[int] = set()
        """Threads that are inside a call of librdkafka which gives them reports."""

    @property
    def has_failures(self) -> bool:
        return self._failures > 0

    def note_failure(self, failure: SendFailed) -> None:
        self._failures += 1
        self._failure = self._failure or str(failure)

    def take_failures(self) -> tuple[int, str]:
        """How many failed since this was asked last, and what the first of them said."""
        taken = self._failures, self._failure
        self._failures, self._failure = 0, ""
        return taken

    def want_back(self) -> None:
        """Who is about to read reports says so."""
        self.is_wanted_back = self.server != 0

    def step_back(self) -> None:
        """Asked at the end of a report, when somebody wants the reports back."""
        if get_ident() == self.server:
            self.is_wanted_back = False
            raise StepBack

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While this thread is in a call of librdkafka that gives it reports."""
        me = get_ident()
        self._readers.add(me)
        try:
            yield
        finally:
            self._readers.discard(me)

    def is_reading(self) -> bool:
        """Whether the caller is called inside such a call: by a report, an `error_cb`, or what interrupts those.

        It must not ask for reports then: librdkafka's binding ends the whole process when a thread asks within that.
        """
        return bool(self._readers) and get_ident() in self._readers


Where = tuple[int | None, int | None, int]
"""Partition, offset and time, as librdkafka says them."""


def where_is(message: RawMessage) -> Where:
    return message.partition(), message.offset(), message.timestamp()[1]


def delivery(topic: str, where: Where) -> Delivery:
    partition, offset, timestamp_ms = where
    known = offset if offset is not None and offset >= 0 else None
    return made_delivery(topic, -1 if partition is None else partition, known, timestamp_ms)


def failure(topic: str, error: KafkaError) -> SendFailed:
    return send_failure(topic, error, retriable=error.retriable())
