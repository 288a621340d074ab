"""The memory of requests that have only partly arrived, bounded over all connections.

Over the limit only the oldest of them is read from, so that one request at a time still gets through; the others go
on when there is room again. Small requests live in the shared scratch buffer and are never held up.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A connection with part of a large request in memory."""

    def set_stalled(self, stalled: bool) -> None:
        """Stop reading from the peer, or read again."""
        ...


class RequestMemory:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self._stalled: dict[Holder, None] = {}
        self.held_bytes = 0

    def hold(self, holder: Holder, count: int) -> None:
        """`holder` now keeps `count` bytes of an unfinished request; 0 when it is finished or gone."""
        self.held_bytes += count - self._held.get(holder, 0)
        if count:
            # A holder keeps its place in the order: the oldest is the first.
            self._held[holder] = count
        else:
            self._held.pop(holder, None)
            self._stalled.pop(holder, None)
        self._settle(holder)

    def is_stalled(self, holder: Holder) -> bool:
        return holder in self._stalled

    def _settle(self, changed: Holder) -> None:
        if self.held_bytes <= self._bytes_max:
            go_on = list(self._stalled)
        else:
            first = next(iter(self._held))
            if changed in self._held and changed is not first and changed not in self._stalled:
                self._stalled[changed] = None
                changed.set_stalled(True)
            go_on = [first] if first in self._stalled else []
        for holder in go_on:
            del self._stalled[holder]
            holder.set_stalled(False)
