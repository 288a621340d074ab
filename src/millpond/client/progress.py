"""Records under way: they finish in any order, and what has finished without a gap may be committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import Origin, origin_of
from millpond.client.message import Message, Send


class Progress:
    """The records of one partition that are under way, in order of their offsets."""

    def __init__(self) -> None:
        self._under_way: dict[int, list[Send] | None] = {}
        """What a finished record wants sent; None while it is not finished."""
        self._order: deque[int] = deque()
        """The same records, the first first: to look for the first key of a dict takes longer with each that went."""
        self.furthest = -1
        """The highest offset whose handler was started."""
        self.is_ours = True
        """False once the partition was taken away, or given anew."""
        self.running = 0
        """Records whose handler runs."""
        self._done_to: int | None = None
        self._outgoing: list[Send] = []

    def __len__(self) -> int:
        """Records that are not finished, or behind one that is not."""
        return len(self._order)

    def begin(self, offset: int) -> None:
        if offset not in self._under_way:
            self._order.append(offset)
        self._under_way[offset] = None

    def finish(self, offset: int, outgoing: list[Send]) -> int:
        """How many are not under way any more: this one and those behind it, or none while there is a gap before."""
        under_way, order = self._under_way, self._order
        if offset not in under_way:
            order.append(offset)
        under_way[offset] = outgoing
        count = len(order)
        while order and (sends := under_way[order[0]]) is not None:
            head = order.popleft()
            del under_way[head]
            if sends:
                self._outgoing += sends
            # The offset after a finished record, so gaps in the log do not matter.
            self._done_to = head + 1
        return count - len(order)

    def not_started(self) -> int | None:
        """The first record behind all that were started."""
        return next((offset for offset in self._order if offset > self.furthest), None)

    def take(self) -> tuple[int | None, list[Send]]:
        """The offset that may be committed, with what must be sent before; None when nothing is new."""
        taken = self._done_to, self._outgoing
        self._done_to, self._outgoing = None, []
        return taken


@dataclass(slots=True, eq=False)
class Job:
    message: Message
    partition: TopicPartition
    """The partition it was read from, maybe one of a retry topic."""
    progress: Progress
    """That of the assignment it was read in; when the partition has another by now, the job is nobody's."""
    lane: Hashable | None
    attempts: int = 0
    """Tries so far."""
    redriven: int = 0
    """How often it has come back from the dead letters."""
    store_faults: int = 0
    """How often the store of processed ids failed, before or after the handler."""
    moved_from: Origin | None = None
    """Where it was first read, if that was elsewhere."""

    @property
    def origin(self) -> Origin:
        return self.moved_from or origin_of(self.message)
