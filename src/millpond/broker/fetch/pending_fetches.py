"""Fetches that wait for records: how each waits and wakes, and how they share the loop.

Clients choose how many fetches wait for the same record, or for the same moment. While there are few, each is
answered as soon as it can be; answering thousands in one turn of the loop would hold up everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from millpond.base.clock import Timer
from millpond.base.later import Later
from millpond.base.pending import Pending
from millpond.base.ports import Clock
from millpond.broker.loop.turns import Turns
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.fetch.source import FetchSource

T = TypeVar("T")

FEW: Final = 100
"""Up to this number, pending fetches are answered at once."""


class PendingFetches:
    def __init__(self, clock: Clock) -> None:
        self._turns = Turns(clock)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self) -> None:
        self._count += 1

    def remove(self) -> None:
        self._count -= 1

    def schedule(self, resume: Callable[[], None]) -> None:
        """Resume a fetch now, or in its turn if there are many."""
        if self._count <= FEW:
            resume()
        else:
            self._turns.wait(resume)


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
