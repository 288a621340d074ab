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

    def take(self) -> int | None:
        """The next id if one is at hand; None has a block fetched, and the caller should ask again."""
        if self._next < self._end:
            self._next += 1
            return self._next - 1
        self.have_one(_nothing)
        return None

    def have_one(self, then: Callable[[], None]) -> None:
        """Call `then` once `take` can give an id, or cannot be made to."""
        if self._next < self._end:
            then()
            return

        def put_back(producer_id: int | None) -> None:
            if producer_id is not None:
                self._next = producer_id
            then()

        self.next(put_back)

    def _on_block(self, block: ProducerIdBlock) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._next, self._end = block.first, block.first + block.count
        for on_id in waiting:
            if block.verdict.ok:
                self.next(on_id)
            else:
                on_id(None)


def _nothing() -> None:
    """The block was wanted, nobody in particular waits for it."""
