"""Replies to decisions on the metadata that wait until these are committed and applied, in the order of the calls."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from millpond.base.later import Later
from millpond.base.values import dataclass

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Parked:
    """A reply that waits until everything below `end_offset` is committed and applied."""

    end_offset: int
    later: Later[Any]
    reply: object

    def answer(self, _: object) -> None:
        self.later.finish(self.reply)


class PendingReplies:
    def __init__(self) -> None:
        self._parked: deque[_Parked] = deque()

    def __bool__(self) -> bool:
        """Whether any wait."""
        return bool(self._parked)

    def add(self, end_offset: int, reply: R) -> Later[R]:
        """The reply, once everything below `end_offset` is applied."""
        later: Later[R] = Later()
        self._parked.append(_Parked(end_offset, later, reply))
        return later

    def answer_below(self, applied_offset: int, followed: Later[Any] | None) -> None:
        """So far it is applied. The first of them also waits until whoever watches has `followed`."""
        while self._parked and self._parked[0].end_offset <= applied_offset:
            parked = self._parked.popleft()
            if followed is not None:
                followed.then(parked.answer)
                followed = None
            else:
                parked.answer(None)

    def take_all(self) -> list[tuple[Later[Any], object]]:
        """All that wait, to be ended by the caller: none of them is parked any more."""
        parked, self._parked = self._parked, deque()
        return [(each.later, each.reply) for each in parked]
