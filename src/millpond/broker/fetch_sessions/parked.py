"""Fetches that wait for records: a few are answered as soon as they can be, very many in turns.

Whoever asks chooses how many wait for the same record, or for the same moment. To read and answer for thousands in
one turn of the loop would keep everybody else waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millpond.base.ports import Clock
from millpond.broker.loop.turns import Turns

FEW: Final = 100
"""While no more than so many wait, all of them can be answered at once."""


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

    def answer(self, go_on: Callable[[], None]) -> None:
        """One of them has what it waits for: `go_on` comes now, or in its turn."""
        if self._count <= FEW:
            go_on()
        else:
            self._turns.wait(go_on)
