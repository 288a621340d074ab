"""Replies to metadata changes: each waits until its change is committed and applied, in the order of the requests."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from millpond.base.later import Later

R = TypeVar("R")


class _PendingReply(Later[R]):
    """A reply that waits until everything below `end_offset` is committed and applied."""

    __slots__ = ("end_offset", "reply")

    def __init__(self, end_offset: int, reply: R) -> None:
        super().__init__()
        self.end_offset = end_offset
        self.reply = reply

    def answer(self, _: object) -> None:
        self.finish(self.reply)


class PendingReplies:
    def __init__(self) -> None:
        self._pending: deque[_PendingReply[Any]] = deque()

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, end_offset: int, reply: R) -> Later[R]:
        """The reply, once everything below `end_offset` is applied."""
        pending = _PendingReply(end_offset, reply)
        self._pending.append(pending)
        return pending

    def answer_below(self, applied_offset: int, followed: Later[Any] | None) -> None:
        """Answer every reply that this offset completes. The first also waits until the observers have `followed`."""
        while self._pending and self._pending[0].end_offset <= applied_offset:
            pending = self._pending.popleft()
            if followed is not None:
                followed.then(pending.answer)
                followed = None
            else:
                pending.answer(None)

    def take_all(self) -> list[tuple[Later[Any], object]]:
        """Remove all of them, for the caller to end."""
        pending, self._pending = self._pending, deque()
        return [(each, each.reply) for each in pending]
