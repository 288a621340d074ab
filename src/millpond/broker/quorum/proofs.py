"""Until when the other replicas provably followed this leader.

The arrival of a fetch proves nothing: a partition or a stopped process may have delayed it, and its sender may follow
another leader by now. But a replica has one fetch at a time on a connection: a second one was sent after the response
to the first had arrived, so its sender still followed this leader when that response left.
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
        """The epoch and the last time the replica provably followed in it."""

    def on_fetch(self, replica: ReplicaKey, connection: int, epoch: int) -> None:
        answer = self._answers.pop(replica, None)
        if answer is not None and (answer.connection, answer.epoch) == (connection, epoch):
            self._proved[replica] = epoch, answer.left_ms

    def on_answer(self, replica: ReplicaKey, connection: int, epoch: int, now_ms: int) -> None:
        self._answers[replica] = _Answer(connection, epoch, now_ms)

    def forget(self, replica: ReplicaKey) -> None:
        """Another process has taken the place of this replica."""
        self._answers.pop(replica, None)
        self._proved.pop(replica, None)

    def followed_ms(self, replica: ReplicaKey, epoch: int) -> int | None:
        """The last time the replica provably followed in this epoch."""
        proved = self._proved.get(replica)
        return proved[1] if proved is not None and proved[0] == epoch else None
