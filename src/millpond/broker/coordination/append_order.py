"""Transactional writes of one connection are appended in the order in which they arrived.

A transactional write waits for its coordinator's permission, partition by partition, and some of it only after a
retry. So a later request may be permitted before an earlier one. If it were appended first, its sequence numbers
would be out of order, or an older offset would overwrite a newer one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from millpond.base.later import Later

T = TypeVar("T")
U = TypeVar("U")


class _Pending(Generic[T]):
    """One write that waits for its permission, or for an earlier write."""

    __slots__ = ("is_permitted", "permission", "turn")

    def __init__(self, turn: Later[T]) -> None:
        self.turn = turn
        """Ends when the write is appended, refused or cancelled."""
        self.is_permitted = False
        self.permission: T | None = None


class _Queue:
    """The writes of one key, in the order of their arrival."""

    def __init__(self) -> None:
        self.pending: deque[_Pending[Any]] = deque()
        self._is_draining = False

    def drain(self) -> bool:
        """Append all at the head of the queue that are permitted; whether none is left."""
        if self._is_draining:
            return False
        pending = self.pending
        self._is_draining = True
        try:
            # A loop, as a recursion from each write to its successor would be as deep as the queue is long.
            while pending and (pending[0].turn.ended or pending[0].is_permitted):
                first = pending.popleft()
                first.turn.finish(first.permission)
        finally:
            self._is_draining = False
        return not pending


class AppendOrder:
    def __init__(self) -> None:
        self._queues: dict[Hashable, _Queue] = {}

    def is_waiting(self, key: Hashable) -> bool:
        """Whether an earlier write with this key has yet to be appended."""
        return key in self._queues

    def append(self, key: Hashable, permission: Later[T], append: Callable[[T], Later[U]]) -> Later[U]:
        """Append once this is permitted and all earlier writes with this key are appended, refused or cancelled."""
        queue = self._queues.get(key)
        if queue is None:
            if permission.ended:
                return permission.chain(append)
            queue = self._queues[key] = _Queue()

        def drain() -> None:
            if queue.drain():
                self._queues.pop(key, None)

        def on_end() -> None:
            permission.cancel()
            drain()

        turn: Later[T] = Later(on_end)
        waiting = _Pending(turn)
        queue.pending.append(waiting)
        appended = turn.chain(append)

        def permit(value: T) -> None:
            waiting.is_permitted, waiting.permission = True, value
            drain()

        permission.then(permit, turn.fail)
        return appended
