"""Since when the other replicas are known to follow this leader.

Not since their fetches came in: one may have been under way for long, held back by a network that was cut or by a
process that was stopped, and whoever sent it follows another one by now. A fetch that comes on the same connection as
the one before was sent after that one's answer had arrived: when the answer left, its sender still followed.
"""

from __future__ import annotations

from millpond.base.named_tuple import NamedTuple
from millpond.quorum.messages import ReplicaKey


class _Answer(NamedTuple):
    connection: int
    epoch: int
    left_ms: int


class Proofs:
    def __init__(self) -> None:
        self._answers: dict[ReplicaKey, _Answer] = {}
        self._proved: dict[ReplicaKey, tuple[int, int]] = {}
        """The epoch, and until when it was followed for certain."""

    def on_fetch(self, replica: ReplicaKey, connection: int, epoch: int) -> None:
        answer = self._answers.pop(replica, None)
        if answer is not None and (answer.connection, answer.epoch) == (connection, epoch):
            self._proved[replica] = epoch, answer.left_ms

    def on_answer(self, replica: ReplicaKey, connection: int, epoch: int, now_ms: int) -> None:
        self._answers[replica] = _Answer(connection, epoch, now_ms)

    def forget(self, replica: ReplicaKey) -> None:
        """Another process is this replica from now on."""
        self._answers.pop(replica, None)
        self._proved.pop(replica, None)

    def followed_ms(self, replica: ReplicaKey, epoch: int) -> int | None:
        """When it followed for certain in this epoch, the last moment that is known."""
        proved = self._proved.get(replica)
        return proved[1] if proved is not None and proved[0] == epoch else None
