"""All dead letters of this node: whose turn it is to write some, and how many there were."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.broker.shares.letters.target import LetterTarget

WRITERS_MAX: Final = 4
"""Share partitions that write letters at the same time; each holds what it has read of the log in memory."""


class Writer(Protocol):
    """The letters of one share partition."""

    def begin(self) -> None:
        """It is your turn; end it with `leave`."""
        ...


class LetterOffice:
    def __init__(self, target: LetterTarget, clock: Clock) -> None:
        self.target: Final = target
        self._clock = clock
        self.written_total = 0
        self.failing: set[Writer] = set()
        """Those whose last attempt failed."""
        self._waiting: deque[Writer] = deque()
        self._writing: set[Writer] = set()
        self._is_due = False
        """Whether somebody is about to be admitted."""

    def enter(self, writer: Writer) -> None:
        """Its `begin` is called when it is its turn, which it ends with `leave`."""
        self._waiting.append(writer)
        self._admit_soon()

    def leave(self, writer: Writer) -> None:
        self._writing.discard(writer)
        self._admit_soon()

    def _admit_soon(self) -> None:
        """In another turn of the loop: thousands may leave again as soon as they are admitted."""
        if self._waiting and not self._is_due:
            self._is_due = True
            self._clock.call_soon(self._admit)

    def _admit(self) -> None:
        self._is_due = False
        for _ in range(min(len(self._waiting), WRITERS_MAX - len(self._writing))):
            writer = self._waiting.popleft()
            self._writing.add(writer)
            writer.begin()
