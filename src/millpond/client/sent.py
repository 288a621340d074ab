"""The future of a sent record: one of `concurrent.futures`, but cheap until somebody waits for it.

A future of the standard library makes a lock, a condition and two lists at once. Most records are never waited for
one by one, so here they are made when a first waiter, callback or canceller comes.
"""

from __future__ import annotations

from concurrent.futures import Future
from threading import Condition, Lock
from typing import Any

from millpond.client.message import Delivery

_MAKING = Lock()
_PENDING = "PENDING"
_FINISHED = "FINISHED"


class Sent(Future[Delivery]):
    """Fulfilled once, by `fulfil` or `fail`."""

    _made: Condition | None = None
    _state: Any = _PENDING
    _result: Any = None
    _exception: Any = None

    def __init__(self) -> None:
        """Nothing yet; not even what the standard future makes."""

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

    def fail(self, error: BaseException) -> None:
        if not self._finished_alone(None, error) and self.set_running_or_notify_cancel():
            self.set_exception(error)

    def _finished_alone(self, delivery: Delivery | None, error: BaseException | None) -> bool:
        """Whether nobody had asked, so that setting the state was all there was to do."""
        with _MAKING:
            if self._made is not None:
                return False
            self._result = delivery
            self._exception = error
            self._state = _FINISHED
            return True
