"""One heap of deadlines for all groups of a shard.

A heartbeat moves a deadline back many times before it is ever reached. So a deadline that moves back keeps its place
in the heap; when that place comes up, it is moved to where it now belongs. The heap stays about as long as the number
of timers, however often they are set and cancelled.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from millpond.base.named_tuple import NamedTuple

HEAP_KEPT = 64
"""A heap up to this length is never rebuilt."""


class TimerKey(NamedTuple):
    """What a timer is for. `kind` selects its handler."""

    kind: str
    group_id: str = ""
    member_id: str = ""


class Timers:
    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._placed: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadlines

    def set(self, key: TimerKey, at_ms: int) -> None:
        """Set the deadline of `key`, replacing an earlier one."""
        self._deadlines[key] = at_ms
        placed = self._placed.get(key)
        if placed is None or at_ms < placed:
            self._placed[key] = at_ms
            heappush(self._heap, (at_ms, key))

    def cancel(self, key: TimerKey) -> None:
        if self._deadlines.pop(key, None) is not None and len(self._heap) > HEAP_KEPT + 2 * len(self._deadlines):
            # Members that come and go leave stale places, which would only come up after their sessions.
            self._placed = dict(self._deadlines)
            self._heap = [(at_ms, key) for key, at_ms in self._deadlines.items()]
            heapify(self._heap)

    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap:
            at_ms, key = self._heap[0]
            deadline_ms = self._deadlines.get(key)
            if deadline_ms == at_ms:
                return at_ms
            if deadline_ms is None or self._placed.get(key) != at_ms:
                # Cancelled, or another place of it in the heap comes earlier.
                heappop(self._heap)
                if self._placed.get(key) == at_ms:
                    del self._placed[key]
            else:
                self._placed[key] = deadline_ms
                heapreplace(self._heap, (deadline_ms, key))
        return None

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Take one expired timer, earliest first."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        _, key = heappop(self._heap)
        del self._deadlines[key]
        self._placed.pop(key, None)
        return key
