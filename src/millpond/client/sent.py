"""The future of a sent record: one of `concurrent.futures`, but cheap until somebody waits for it.

A future of the standard library makes a lock, a condition and two lists at once. Most records are never waited for
one by one, so here they are made when a first waiter, callback or canceller comes.
"""

from __future__ import annotations

from concurrent.futures import Future
from threading import Condition, Lock
from typing import Any

from millpond.client.errors import Timeout
from millpond.client.message import Delivery
from millpond.client.reach import Reach

_MAKING = Lock()
_PENDING = "PENDING"
_FINISHED = "FINISHED"


class Sent(Future[Delivery]):
    """Fulfilled once, by `fulfil` or `fail`."""

    _made: Condition | None = None
    _state: Any = _PENDING
    _result: Any = None
    _exception: Any = None

    def __init__(self, topic: str = "", reach: Reach | None = None) -> None:
        """Nothing yet; not even what the standard future makes."""
        self._topic = topic
        self._reach = reach

    def result(self, timeout: float | None = None) -> Delivery:
        """Where it is. SendFailed when it is in no log, Timeout when nobody knows yet."""
        try:
            return super().result(timeout)
        except TimeoutError as late:
            raise self._still_waiting(late, timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        except TimeoutError as late:
            raise self._still_waiting(late, timeout) from None

    @property
    def _condition(self) -> Condition:  # type: ignore[override]
        # All that wait, cancel or want to be called ask for this first.
        if self._made is None:
            with _MAKING:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._made = Condition()
        return self._made

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
        is_down = self._reach is not None and self._reach.down_seconds()
        why = (
            f"{self._reach.where()} cannot be reached" if self._reach and is_down else "the cluster is slow to answer"
        )
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
            self._result = delivery
            self._exception = error
            self._state = _FINISHED
            return True
