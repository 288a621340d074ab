"""The memory of requests that have only partly arrived, bounded over all connections.

Over the limit only the oldest of them is read from, so that one request at a time still gets through; the others go
on when there is room again. Small requests live in the shared scratch buffer and are never held up.

Whoever sends a large request must send it: memory that is held is kept from others. How fast is measured over a
stretch of time, not by the last byte, and more is asked of the one whom all others wait for.
"""

from __future__ import annotations

from typing import Final, Protocol

STUCK_MS: Final = 30_000
STUCK_BYTES: Final = 32 << 10
"""Fewer bytes than this within that time, and a request is given up."""

TURN_MS: Final = 3_000
TURN_BYTES: Final = 256 << 10
"""The same while others wait for the memory."""


class Pace:
    """How fast a large request arrives."""

    __slots__ = ("_stuck_since", "_turn_since", "arrived_bytes")

    def __init__(self, now_ms: int) -> None:
        self.arrived_bytes = 0
        self.begin_anew(now_ms)

    def begin_anew(self, now_ms: int) -> None:
        """It could not arrive until now, because we did not read."""
        self._stuck_since = self._turn_since = (now_ms, self.arrived_bytes)

    def is_too_slow(self, now_ms: int, *, others_wait: bool) -> bool:
        """To be asked every now and then."""
        (stuck_ms, stuck_bytes), (turn_ms, turn_bytes) = self._stuck_since, self._turn_since
        arrived = self.arrived_bytes
        too_slow = False
        if now_ms - stuck_ms > STUCK_MS:
            self._stuck_since = (now_ms, arrived)
            too_slow = arrived - stuck_bytes < STUCK_BYTES
        if now_ms - turn_ms > TURN_MS:
            self._turn_since = (now_ms, arrived)
            too_slow = too_slow or (others_wait and arrived - turn_bytes < TURN_BYTES)
        return too_slow


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

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for memory that another one holds."""
        return bool(self._stalled)

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
