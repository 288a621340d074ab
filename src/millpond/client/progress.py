"""Records in flight finish in any order; the offset up to which all have finished may be committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import Origin, origin_of
from millpond.client.message import Message, Send


class Progress:
    """The records of one partition that are in flight, in offset order."""

    def __init__(self) -> None:
        self._under_way: dict[int, list[Send] | None] = {}
        """The Sends of a finished record; None while it is unfinished."""
        self._order: deque[int] = deque()
        """The same offsets in order: finding the first key of a dict gets slower with every deletion."""
        self.furthest = -1
        """The highest offset whose handler was started."""
        self.is_ours = True
        """False once the partition was revoked, even if it was assigned again."""
        self.running = 0
        """Records whose handler is running."""
        self._done_to: int | None = None
        self._outgoing: list[Send] = []

    def __len__(self) -> int:
        """Records that are unfinished, or behind an unfinished one."""
        return len(self._order)

    def begin(self, offset: int) -> None:
        if offset not in self._under_way:
            self._order.append(offset)
        self._under_way[offset] = None

    def finish(self, offset: int, outgoing: list[Send]) -> int:
        """How many records this completes: this and finished ones behind it, or none while an earlier one runs."""
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
            # The offset after the record: gaps in the log do not matter.
            self._done_to = head + 1
        return count - len(order)

    def not_started(self) -> int | None:
        """The offset of the first record after the last started one."""
        return next((offset for offset in self._order if offset > self.furthest), None)

    def take(self) -> tuple[int | None, list[Send]]:
        """The offset to commit, or None, and the Sends that must come first."""
        taken = self._done_to, self._outgoing
        self._done_to, self._outgoing = None, []
        return taken


@dataclass(slots=True, eq=False)
class Job:
    message: Message
    partition: TopicPartition
    """The partition it was read from, possibly of a retry topic."""
    progress: Progress
    """Belongs to the assignment it was read in; a later assignment of the partition has another."""
    lane: Hashable | None
    attempts: int = 0
    """Tries so far."""
    redriven: int = 0
    """How often it was redriven from the dead letters."""
    store_faults: int = 0
    """How often the store of processed ids failed, before or after the handler."""
    moved_from: Origin | None = None
    """Where it was first read, if not here."""

    @property
    def origin(self) -> Origin:
        return self.moved_from or origin_of(self.message)
