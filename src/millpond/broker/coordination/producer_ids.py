"""Producer ids for idempotent producers, handed out from blocks that the metadata log has committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.ports import Clock
from millpond.metadata.decision import Verdict
from millpond.metadata.producer_ids import ProducerIdBlock
from millpond.wire import messages as m

WAIT_MS = 1_000
"""How long a producer waits for its id before it may try another node: this one may be isolated."""


class ProducerIds:
    """The producer ids that this node may hand out.

    It tries to keep `reserve` ids in stock: a client that asks a node out of contact with the controller keeps asking
    that node and never tries another.
    """

    def __init__(self, clock: Clock, allocate: Callable[[], Later[ProducerIdBlock]], reserve: int = 0) -> None:
        self._clock = clock
        self._allocate = allocate
        self._reserve = reserve
        self._at_hand: deque[int] = deque()
        self._waiting: deque[Later[int]] = deque()
        self._is_requested = False

    @property
    def is_stocked(self) -> bool:
        return len(self._at_hand) >= self._reserve

    def stock_up(self) -> None:
        """Request the next block unless enough ids are left or a request is in flight."""
        if not self.is_stocked:
            self._ask()

    def next(self) -> Later[int]:
        """The next id, now or once a new block is committed.

        It fails with Refused if the block cannot be committed, or not in time; a late block serves later requests.
        """
        if self._at_hand:
            return done(self._give())
        later: Later[int] = Later()
        later.expire_after(self._clock, WAIT_MS, lambda: later.fail(_not_yet()))
        self._waiting.append(later)
        self._ask()
        return later

    def take(self) -> int | None:
        """The next id in stock; None requests a block, and the caller should try again."""
        if self._at_hand:
            return self._give()
        self.have_one()
        return None

    def have_one(self) -> Later[None]:
        """Ends once `take` can return an id, or no block can be had."""
        if self._at_hand:
            return done(None)
        return self.next().map(self._at_hand.appendleft).recover(Refused, lambda _: None)

    def _give(self) -> int:
        producer_id = self._at_hand.popleft()
        self.stock_up()
        return producer_id

    def _ask(self) -> None:
        if not self._is_requested:
            self._is_requested = True
            self._allocate().then(self._on_block)

    def _on_block(self, block: ProducerIdBlock) -> None:
        self._is_requested = False
        self._at_hand.extend(range(block.first, block.first + block.count))
        waiting, self._waiting = self._waiting, deque()
        for later in waiting:
            if later.ended:
                continue
            if not block.verdict.ok:
                later.fail(Refused(block.verdict.code, block.verdict.message or ""))
            elif self._at_hand:
                later.finish(self._at_hand.popleft())
            else:
                self._waiting.append(later)
        if self._waiting:
            self._ask()


def _not_yet() -> Refused:
    return Refused(ErrorCode.REQUEST_TIMED_OUT, "the controller has not given this node producer ids yet")


def block_of(response: m.AllocateProducerIdsResponse) -> ProducerIdBlock:
    verdict = Verdict(ErrorCode(response.error_code))
    return ProducerIdBlock(verdict, response.producer_id_start, response.producer_id_len)


def no_block(refused: Refused) -> ProducerIdBlock:
    return ProducerIdBlock(Verdict.of(refused))
