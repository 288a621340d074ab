"""Producer ids for idempotent producers, handed out from blocks that the metadata log has committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.metadata.decision import Verdict
from millpond.metadata.producer_ids import ProducerIdBlock
from millpond.wire import messages as m


class ProducerIds:
    def __init__(self, allocate: Callable[[], Later[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._waiting: deque[Later[int]] = deque()

    def next(self) -> Later[int]:
        """The next id, now or once a new block is committed; Refused when the metadata log cannot commit."""
        if self._next < self._end:
            self._next += 1
            return done(self._next - 1)
        later: Later[int] = Later()
        self._wait(later)
        return later

    def _wait(self, later: Later[int]) -> None:
        self._waiting.append(later)
        if len(self._waiting) == 1:
            self._allocate().then(self._on_block)

    def take(self) -> int | None:
        """The next id if one is at hand; None has a block fetched, and the caller should ask again."""
        if self._next < self._end:
            self._next += 1
            return self._next - 1
        self.have_one()
        return None

    def have_one(self) -> Later[None]:
        """Ends once `take` can give an id, or cannot be made to."""
        if self._next < self._end:
            return done(None)

        def put_back(producer_id: int) -> None:
            self._next = producer_id

        return self.next().map(put_back).recover(Refused, lambda _: None)

    def _on_block(self, block: ProducerIdBlock) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._next, self._end = block.first, block.first + block.count
        for later in waiting:
            if not block.verdict.ok:
                later.fail(Refused(block.verdict.code, block.verdict.message or ""))
            elif self._next < self._end:
                self._next += 1
                later.finish(self._next - 1)
            else:
                self._wait(later)


def block_of(response: m.AllocateProducerIdsResponse) -> ProducerIdBlock:
    verdict = Verdict(ErrorCode(response.error_code))
    return ProducerIdBlock(verdict, response.producer_id_start, response.producer_id_len)


def no_block(refused: Refused) -> ProducerIdBlock:
    return ProducerIdBlock(Verdict.of(refused))
