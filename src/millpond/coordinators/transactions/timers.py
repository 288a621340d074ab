"""The timeouts of transactions: one entry per transactional id, however many transactions it begins."""

from __future__ import annotations

from heapq import heappop, heappush


class Timers:
    """Deadlines that may be too early, never too late: the caller checks those that are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._earliest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, name: str, deadline_ms: int) -> None:
        """Check `name` at this time, or before."""
        known = self._earliest.get(name)
        if known is None or deadline_ms < known:
            self._earliest[name] = deadline_ms
            heappush(self._heap, (deadline_ms, name))

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> str | None:
        """Take one that is due, earliest first."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heappop(self._heap)
            if self._earliest.get(name) == deadline_ms:
                del self._earliest[name]
                return name
        return None
