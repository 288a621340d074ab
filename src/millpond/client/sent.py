"""The future of a sent record: one of `concurrent.futures`, but cheap until somebody waits for it.

A future of the standard library makes a lock, a condition and two lists at once. Most records are never waited for
one by one, so here they are made when a first waiter, callback or canceller comes. Where the record is stays as
librdkafka said it, until somebody asks.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from threading import Condition, RLock
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from millpond.client.connection import log_raised
from millpond.client.errors import Timeout
from millpond.client.message import Delivery
from millpond.client.unreported import Unreported, Where, delivery, failure, where_is

_PENDING = "PENDING"
_FINISHED = "FINISHED"

_MAKING = RLock()
"""The one lock of all futures, held for a few steps: whether a report or somebody who asks comes first.

What interrupts this very thread there, a signal or the end of an object, may send and ask too.
"""


def _begin_anew() -> None:
    global _MAKING
    _MAKING = RLock()


if hasattr(os, "register_at_fork"):
    # A thread may hold it while another one forks, and is not there to let it go in the child.
    os.register_at_fork(after_in_child=_begin_anew)


class Sent(Future[Delivery]):
    """Fulfilled once, by `reported`, `fulfil` or `fail`."""

    _made: Condition | None = None
    _state: Any = _PENDING
    _exception: Any = None
    _where: Where | None = None
    _delivery: Delivery | None = None

    def __init__(self, topic: str = "", unreported: Unreported | None = None) -> None:
        """Nothing yet; not even what the standard future makes."""
        self._topic = topic
        self._unreported = unreported

    def result(self, timeout: float | None = None) -> Delivery:
        """Where it is. SendFailed when it is in no log, Timeout when nobody knows yet."""
        if self._made is None and self._state == _FINISHED and self._exception is None:
            found: Delivery = self._result
            return found
        try:
            return super().result(timeout)
        except TimeoutError as late:
            raise self._still_waiting(late, timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        except TimeoutError as late:
            raise self._still_waiting(late, timeout) from None

    def done(self) -> bool:
        return self._state == _FINISHED or super().done()

    @property
    def _condition(self) -> Condition:  # type: ignore[override]
        # All that wait, cancel or want to be called ask for this first.
        if self._made is None:
            made = Condition()
            waiters: list[Any] = []
            callbacks: list[Any] = []
            with _MAKING:
                if self._made is None:
                    self._waiters, self._done_callbacks, self._made = waiters, callbacks, made
        return self._made

    @property
    def _result(self) -> Any:
        if self._delivery is None and self._where is not None:
            self._delivery = delivery(self._topic, self._where)
        return self._delivery

    @_result.setter
    def _result(self, given: Any) -> None:
        self._delivery = given

    def reported(self, error: KafkaError | None, message: RawMessage) -> None:
        """librdkafka's word about the record. This runs for each, so it does the usual with the fewest steps."""
        if error is None and self._unreported is not None:
            where = message.partition(), message.offset(), message.timestamp()[1]
            with _MAKING:
                if self._made is None:
                    self._where = where
                    self._state = _FINISHED
                    self._unreported.records.discard(self)
                    return
        self.told(error, message)

    def told(self, error: KafkaError | None, message: RawMessage) -> None:
        """The same where somebody may be called, or it failed."""
        unreported = self._unreported
        assert unreported is not None, "it was sent by nobody"
        # Before anybody is called: who flushes then does not wait for this one.
        unreported.records.discard(self)
        with unreported.telling():
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
        if not self._finished_alone(delivery, None) and self.set_running_or_notify_cancel():
            self.set_result(delivery)

    def fail(self, error: BaseException) -> bool:
        """Whether nobody had asked for the outcome so far."""
        if self._finished_alone(None, error):
            return True
        if self.set_running_or_notify_cancel():
            self.set_exception(error)
        return False

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

    def _finished_alone(self, delivery: Delivery | None, error: BaseException | None) -> bool:
        """Whether nobody had asked, so that setting the state was all there was to do."""
        with _MAKING:
            if self._made is not None:
                return False
            # Nothing is called between that question and the state: so nobody asks in between, on this thread either.
            self._delivery = delivery
            self._exception = error
            self._state = _FINISHED
            return True
