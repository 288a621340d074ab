"""The timeouts of transactions: one entry per transactional id, however many transactions it begins."""

from __future__ import annotations

from heapq import heappop, heappush


class Timers:
    """Deadlines may be early but never late: the caller checks each due ID."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._earliest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, name: str, deadline_ms: int) -> None:
        """Make `name` due at this time or earlier."""
        earliest = self._earliest.get(name)
        if earliest is None or deadline_ms < earliest:
            self._earliest[name] = deadline_ms
            heappush(self._heap, (deadline_ms, name))

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> str | None:
        """Take the earliest ID that is due; None if there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heappop(self._heap)
            if self._earliest.get(name) == deadline_ms:
                del self._earliest[name]
                return name
        return None
