"""The future of a sent record: a `concurrent.futures.Future` that costs little until something waits for it.

The standard future creates a lock, a condition and two lists at once. Most records are never waited for one by one,
so here they are created for the first waiter, callback or cancel, and the Delivery is built on first access.

A record without a waiter takes no lock. The reporting thread writes the outcome and then checks for a waiter; a
waiter registers and then checks for an outcome. Whatever the order, one of them sees the other, on two threads or on
one that a signal interrupts.

This relies on the GIL, which makes one thread's writes visible in order. Without it a processor may reorder the write
and the read, and the report of a record that is being waited for would be lost. librdkafka's binding turns the GIL
back on where Python was started without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, RLock
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage
from confluent_kafka import Producer as RawProducer

from millpond.client.connection import log_raised
from millpond.client.errors import Timeout
from millpond.client.message import Delivery
from millpond.client.pending_reports import (
    ANY_PARTITION,
    SENDS_PER_READ,
    PendingReports,
    delivery,
    failure,
    location_of,
)

PlainSend: TypeAlias = "Callable[[str, bytes, str | bytes | None], SendFuture]"
"""Sends topic, value and key: a record without headers, partition or timestamp."""

_PENDING = "PENDING"
_FINISHED = "FINISHED"
_CANCELLED = "CANCELLED"

LOOK_AGAIN_SECONDS: Final = 1.0
"""How often an unbounded wait checks again. A signal handler on the thread that is about to sleep may read the report
itself, and then nothing wakes that thread."""

_DELIVERED: Final = object()
"""The outcome of a delivered record before its Delivery is built."""

_CREATION_LOCK = RLock()
"""Shared by all futures, held briefly to create a condition. Reentrant: a signal handler or a finalizer that
interrupts the holder may send and wait too."""


def _reset_after_fork() -> None:
    global _CREATION_LOCK
    _CREATION_LOCK = RLock()


if hasattr(os, "register_at_fork"):
    # A thread that holds the lock during a fork does not exist in the child to release it.
    os.register_at_fork(after_in_child=_reset_after_fork)


class SendFuture(Future[Delivery]):
    """Completed once, by `fulfil`, `fail` or librdkafka, which calls it with the delivery report."""

    __slots__ = (
        "_offset",
        "_outcome",
        "_partition",
        "_pending_reports",
        "_real_condition",
        "_timestamp_ms",
        "_topic",
    )

    _real_condition: Condition | None
    """The standard future's condition, created for the first waiter."""
    _outcome: Any
    """None, then the Delivery or the error. Written before `_real_condition` is read."""

    # The standard future's fields until something waits.
    _state: Any = _PENDING
    _exception: Any = None

    def __init__(self, topic: str = "", pending_reports: PendingReports | None = None) -> None:
        """Does not call the standard future's constructor."""
        self._topic = topic
        self._pending_reports = pending_reports
        self._real_condition = None
        self._outcome = None

    def result(self, timeout: float | None = None) -> Delivery:
        """The Delivery. SendFailed if the record is not in the log, Timeout if that is unknown yet."""
        # In this order: a cancel between the two checks comes too late.
        if (
            self._outcome is not None
            and self._real_condition is None
            and not isinstance(self._outcome, BaseException)
        ):
            result: Delivery = self._result
            return result
        while True:
            try:
                return super().result(LOOK_AGAIN_SECONDS if timeout is None else timeout)
            except TimeoutError as late:
                if timeout is not None or late is self._outcome:
                    raise self._still_waiting(late, timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        while True:
            try:
                return super().exception(LOOK_AGAIN_SECONDS if timeout is None else timeout)
            except TimeoutError as late:
                if timeout is not None:
                    raise self._still_waiting(late, timeout) from None

    def done(self) -> bool:
        return self._outcome is not None or super().done()

    @property
    def _condition(self) -> Condition:  # type: ignore[override]
        # Waiting, cancelling and adding a callback all read this first.
        made = self._real_condition
        if made is None:
            made = Condition()
            waiters: list[Any] = []
            callbacks: list[Any] = []
            with _CREATION_LOCK:
                if self._real_condition is None:
                    self._waiters, self._done_callbacks, self._real_condition = waiters, callbacks, made
                made = self._real_condition
        if self._outcome is not None and self._state == _PENDING:
            self._finish(made)
        return made

    @property
    def _result(self) -> Any:
        if self._outcome is _DELIVERED:
            self._outcome = delivery(self._topic, (self._partition, self._offset, self._timestamp_ms))
        return self._outcome

    @_result.setter
    def _result(self, value: Any) -> None:
        self._outcome = value

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        """Take librdkafka's delivery report, in the fewest steps for a delivered record.

        librdkafka calls the future itself: a bound method would be one more object per record for the garbage
        collector to traverse.
        """
        pending_reports = self._pending_reports
        assert pending_reports is not None, "not sent by a producer"
        is_alone = False
        if error is None:
            self._partition = message.partition()
            self._offset = message.offset()
            self._timestamp_ms = message.timestamp()[1]
            self._outcome = _DELIVERED
            is_alone = self._real_condition is None
        if is_alone:
            pending_reports.records.discard(self)
        else:
            self.resolve(error, message)
        if pending_reports.should_yield:
            pending_reports.yield_reports()

    def resolve(self, error: KafkaError | None, message: RawMessage) -> None:
        """The same for a record that failed or has a waiter."""
        pending_reports = self._pending_reports
        assert pending_reports is not None, "not sent by a producer"
        # Before any callback: a flush in one must not wait for this record.
        pending_reports.records.discard(self)
        try:
            if error is None:
                self.fulfil(delivery(self._topic, location_of(message)))
                return
            refusal = failure(self._topic, error)
            if self.fail(refusal):
                pending_reports.note_failure(refusal)
        except BaseException as raised:
            # The standard future does not catch a BaseException, which would end the thread that reads reports.
            log_raised("the callback of a record", raised)

    def fulfil(self, delivery: Delivery) -> None:
        self._outcome = delivery
        if self._real_condition is not None:
            self._notify()

    def fail(self, error: BaseException) -> bool:
        """Whether nothing was waiting for the outcome."""
        self._outcome = error
        if self._real_condition is None:
            return True
        self._notify()
        return False

    def _finish(self, made: Condition) -> None:
        """Wake the waiters, unless cancelled. Only the thread that brought the outcome runs the callbacks."""
        is_failure = isinstance(self._outcome, BaseException)
        with made:
            if is_failure:
                self._exception = self._outcome
            if self._state != _PENDING:
                return
            # No call between the check and the assignment, so no signal handler on this thread can come in between.
            self._state = _FINISHED
            for waiter in self._waiters:
                if is_failure:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            made.notify_all()

    def _notify(self) -> None:
        """Wake the waiters and run the callbacks."""
        made = self._condition
        with made:
            # The previous holder may have finished the future just before it went to sleep.
            made.notify_all()
            is_cancelled = self._state == _CANCELLED
        if is_cancelled:
            self.set_running_or_notify_cancel()
        elif self._state == _FINISHED:
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def _still_waiting(self, late: TimeoutError, timeout: float | None) -> BaseException:
        if self.done():
            return late  # The send itself failed with it.
        reachability = None if self._pending_reports is None else self._pending_reports.reachability
        is_down = reachability is not None and reachability.down_seconds()
        why = (
            f"{reachability.where()} cannot be reached"
            if reachability and is_down
            else "the cluster is slow to answer"
        )
        return Timeout(
            f"{self._topic}: the record is not acknowledged after {timeout or 0:g} s, because {why}; the producer "
            "keeps trying until delivery_timeout_s is over",
            retriable=True,
        )


class _PlainSendFuture(SendFuture):
    """Its fields are set by `plain_send`: calling a constructor would be a quarter of the cost of sending."""

    __slots__ = ()

    __init__ = object.__init__


def plain_send(raw: RawProducer, pending_reports: PendingReports, read_beside: Callable[[], None]) -> PlainSend:
    """A function that gives a plain record to librdkafka in the fewest steps."""
    produce = raw.produce
    add, discard = pending_reports.records.add, pending_reports.records.discard

    def send(topic: str, value: bytes, key: str | bytes | None) -> SendFuture:
        sent: SendFuture = _PlainSendFuture()
        sent._topic = topic
        sent._pending_reports = pending_reports
        sent._real_condition = None
        sent._outcome = None
        add(sent)
        try:
            produce(topic, value, key, ANY_PARTITION, sent)
        except BaseException:
            discard(sent)
            raise
        pending_reports.sends += 1
        if pending_reports.sends % SENDS_PER_READ == 0 or pending_reports.is_closing:
            read_beside()
        return sent

    return send
