"""A fetch that waits for records: how it waits, wakes and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from millpond.base.clock import Timer
from millpond.base.later import Later
from millpond.base.pending import Pending
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.fetch.source import FetchSource

T = TypeVar("T")


class PendingFetch(Pending[T]):
    """A fetch that waits until its partitions have enough records or its deadline passes.

    A partition that it watches wakes it; it then reads again, and ends if there is enough. From its deadline on,
    anything is enough. Subclasses have the slots, and decide how the result is delivered.
    """

    if not TYPE_CHECKING:
        # mypy would not let its methods assign what only the subclasses have slots for.
        __slots__ = ()

    _source: FetchSource
    _timer: Timer | None
    _is_counted: bool
    _is_due: bool
    """Whether it is scheduled to read again."""
    _is_late: bool

    def wait(self, wait_ms: int) -> None:
        source = self._source
        self._is_counted = True
        source.pending.add()
        self._timer = source.clock.call_later(wait_ms, self.answer)

    def answer(self) -> None:
        """Answer with what is available, however little."""
        self._is_late = True
        self.wake()

    def wake(self) -> None:
        if not self._is_due and not self.ended:
            self._is_due = True
            self._source.pending.schedule(self._resume)

    def _resume(self) -> None:
        self._is_due = False
        if not self.ended:
            self._read_again()

    def _read_again(self) -> None:
        """Read, and end if there is enough."""
        raise NotImplementedError

    def _unwatch(self) -> None:
        """Stop watching partitions."""
        raise NotImplementedError

    def _stop_waiting(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._source.pending.remove()
        self._unwatch()

    def _end(self) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_waiting()


class LaterFetch(PendingFetch[m.FetchResponse], Later[m.FetchResponse]):
    """A pending fetch whose response is a `Later`."""

    __slots__ = ("_is_counted", "_is_due", "_is_late", "_source")

    def __init__(self, source: FetchSource) -> None:
        Later.__init__(self)
        self._source = source
        self._is_counted = self._is_due = self._is_late = False
