"""The future of a sent record: one of `concurrent.futures`, but cheap until somebody waits for it.

A future of the standard library makes a lock, a condition and two lists at once. Most records are never waited for
one by one, so here they are made when a first waiter, callback or canceller comes. Where the record is stays as
librdkafka said it, until somebody asks.

No lock is taken for a record that nobody asks for. Whoever has the outcome writes it down and then looks whether
somebody has asked; whoever asks says so first and then looks for an outcome. So one of them sees the other, whatever
comes first, on two threads or on one that a signal interrupts.

This relies on the interpreter's lock: what one thread has written before it reads, the others see. Without that lock
a processor may do the two the other way round, and a record that is reported while somebody asks would be lost.
librdkafka's binding brings the lock back where Python was started without it.
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
from millpond.client.unreported import ANY_PARTITION, SENDS_PER_READ, Unreported, delivery, failure, where_is

PlainSend: TypeAlias = "Callable[[str, bytes, str | bytes | None], Sent]"
"""Topic, value and key of a record without anything special."""

_PENDING = "PENDING"
_FINISHED = "FINISHED"
_CANCELLED = "CANCELLED"

LOOK_AGAIN_SECONDS: Final = 1.0
"""How long one sleeps who waits without an end. A signal on the very thread that is about to sleep may read the
report: nobody wakes it then."""

_DELIVERED: Final = object()
"""The outcome of a record whose place nobody has read yet."""

_MAKING = RLock()
"""The one lock of all futures, held for a few steps by who is the first to ask.

What interrupts this very thread there, a signal or the end of an object, may send and ask too.
"""


def _begin_anew() -> None:
    global _MAKING
    _MAKING = RLock()


if hasattr(os, "register_at_fork"):
    # A thread may hold it while another one forks, and is not there to let it go in the child.
    os.register_at_fork(after_in_child=_begin_anew)


class Sent(Future[Delivery]):
    """Fulfilled once, by `fulfil`, `fail` or librdkafka, which calls it with its report."""

    __slots__ = ("_made", "_offset", "_outcome", "_partition", "_timestamp_ms", "_topic", "_unreported")

    _made: Condition | None
    """What the standard future needs, once somebody has asked."""
    _outcome: Any
    """None before there is one; then where it is, or why it is nowhere. It is written before `_made` is looked at."""

    # What the standard future knows, as long as nobody has asked.
    _state: Any = _PENDING
    _exception: Any = None

    def __init__(self, topic: str = "", unreported: Unreported | None = None) -> None:
        """Nothing yet; not even what the standard future makes."""
        self._topic = topic
        self._unreported = unreported
        self._made = None
        self._outcome = None

    def result(self, timeout: float | None = None) -> Delivery:
        """Where it is. SendFailed when it is in no log, Timeout when nobody knows yet."""
        # In this order: who cancels between the two questions finds that it is too late.
        if self._outcome is not None and self._made is None and not isinstance(self._outcome, BaseException):
            found: Delivery = self._result
            return found
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
        # All that wait, cancel or want to be called ask for this first.
        made = self._made
        if made is None:
            made = Condition()
            waiters: list[Any] = []
            callbacks: list[Any] = []
            with _MAKING:
                if self._made is None:
                    self._waiters, self._done_callbacks, self._made = waiters, callbacks, made
                made = self._made
        if self._outcome is not None and self._state == _PENDING:
            self._finish(made)
        return made

    @property
    def _result(self) -> Any:
        if self._outcome is _DELIVERED:
            self._outcome = delivery(self._topic, (self._partition, self._offset, self._timestamp_ms))
        return self._outcome

    @_result.setter
    def _result(self, given: Any) -> None:
        self._outcome = given

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        """librdkafka's word about the record. This runs for each, so it does the usual with the fewest steps.

        The future itself is what librdkafka calls: a bound method would be one more object for the garbage collector
        to look at, for each record that is under way.
        """
        unreported = self._unreported
        assert unreported is not None, "it was sent by nobody"
        is_alone = False
        if error is None:
            self._partition = message.partition()
            self._offset = message.offset()
            self._timestamp_ms = message.timestamp()[1]
            self._outcome = _DELIVERED
            is_alone = self._made is None
        if is_alone:
            unreported.records.discard(self)
        else:
            self.told(error, message)
        if unreported.is_wanted_back:
            unreported.step_back()

    def told(self, error: KafkaError | None, message: RawMessage) -> None:
        """The same where somebody may be called, or it failed."""
        unreported = self._unreported
        assert unreported is not None, "it was sent by nobody"
        # Before anybody is called: who flushes then does not wait for this one.
        unreported.records.discard(self)
        try:
            if error is None:
                self.fulfil(delivery(self._topic, where_is(message)))
                return
            refusal = failure(self._topic, error)
            if self.fail(refusal):
                unreported.note_failure(refusal)
        except BaseException as raised:
            # The standard future lets through what is no Exception: the thread that reads reports would end.
            log_raised("the callback of a record", raised)

    def fulfil(self, delivery: Delivery) -> None:
        self._outcome = delivery
        if self._made is not None:
            self._tell()

    def fail(self, error: BaseException) -> bool:
        """Whether nobody had asked for the outcome so far."""
        self._outcome = error
        if self._made is None:
            return True
        self._tell()
        return False

    def _finish(self, made: Condition) -> None:
        """Wake who waits, unless it was cancelled. Callbacks are called by who had the outcome, and only there."""
        is_failure = isinstance(self._outcome, BaseException)
        with made:
            if is_failure:
                self._exception = self._outcome
            if self._state != _PENDING:
                return
            # Nothing is called between that question and the state: so nobody asks in between, on this thread either.
            self._state = _FINISHED
            for waiter in self._waiters:
                if is_failure:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            made.notify_all()

    def _tell(self) -> None:
        """Somebody has asked, before or after the outcome was written down."""
        made = self._condition
        with made:
            # Who held this lock may have finished it on the way to sleep, and sleeps only now.
            made.notify_all()
            is_cancelled = self._state == _CANCELLED
        if is_cancelled:
            self.set_running_or_notify_cancel()
        elif self._state == _FINISHED:
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def _still_waiting(self, late: TimeoutError, timeout: float | None) -> BaseException:
        if self.done():
            return late  # It is what the sending ended with.
        reach = None if self._unreported is None else self._unreported.reach
        is_down = reach is not None and reach.down_seconds()
        why = f"{reach.where()} cannot be reached" if reach and is_down else "the cluster is slow to answer"
        return Timeout(
            f"{self._topic}: the record is not acknowledged after {timeout or 0:g} s, because {why}; it is still "
            "tried until delivery_timeout_s is over",
            retriable=True,
        )


class _PlainSent(Sent):
    """Filled by who makes it: a first method of ours that runs would be a quarter of what sending costs here."""

    __slots__ = ()

    __init__ = object.__init__


def plain_send(raw: RawProducer, unreported: Unreported, read_beside: Callable[[], None]) -> PlainSend:
    """How a record without anything special is given to librdkafka, in the fewest steps."""
    produce = raw.produce
    add, discard = unreported.records.add, unreported.records.discard

    def send(topic: str, value: bytes, key: str | bytes | None) -> Sent:
        sent: Sent = _PlainSent()
        sent._topic = topic
        sent._unreported = unreported
        sent._made = None
        sent._outcome = None
        add(sent)
        try:
            produce(topic, value, key, ANY_PARTITION, sent)
        except BaseException:
            discard(sent)
            raise
        unreported.sends += 1
        if unreported.sends % SENDS_PER_READ == 0 or unreported.is_closing:
            read_beside()
        return sent

    return send
