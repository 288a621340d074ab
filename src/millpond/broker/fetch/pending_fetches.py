"""How the fetches that wait for records share the loop.

Clients choose how many fetches wait for the same record, or for the same moment. While there are few, each is
answered as soon as it can be; answering thousands in one turn of the loop would hold up everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millpond.base.ports import Clock
from millpond.broker.loop.turns import Turns

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
