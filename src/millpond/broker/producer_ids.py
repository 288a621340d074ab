"""Producer ids for idempotent producers, handed out from blocks that the metadata log has committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millpond.metadata.producer_ids import ProducerIdBlock

OnId = Callable[[int | None], None]


class ProducerIds:
    def __init__(self, allocate: Callable[[Callable[[ProducerIdBlock], None]], None]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._waiting: deque[OnId] = deque()

    def next(self, on_id: OnId) -> None:
        """Give the next id, now or once a new block is committed; None when the metadata log cannot commit."""
        if self._next < self._end:
            self._next += 1
            on_id(self._next - 1)
            return
        self._waiting.append(on_id)
        if len(self._waiting) == 1:
            self._allocate(self._on_block)

    def _on_block(self, block: ProducerIdBlock) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._next, self._end = block.first, block.first + block.count
        for on_id in waiting:
            if block.verdict.ok:
                self.next(on_id)
            else:
                on_id(None)
