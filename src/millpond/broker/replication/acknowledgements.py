"""Acknowledging produced records once they are committed: every Produce request that waits for a commit waits here.

Many clients that send one small request each are the most expensive load. Where the only replica is here, requests of
one turn of the loop to the same partition with the same timeout therefore share one timer, one wait and one sync,
which begins when the turn ends and so covers all of them. With followers each request waits alone: they may have
fetched some of a turn's requests and not yet the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, gather, run_all
from millpond.base.pending import Pending
from millpond.base.ports import Clock, ReplyPart
from millpond.broker.requests.request_counts import RequestCounts

if TYPE_CHECKING:
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.connection import Connection
    from millpond.wire.kernel import ShortProduce

PRODUCE: Final = 0


class PendingAck(Pending[None]):
    """A small request whose records are written, and its reply for when they are committed."""

    __slots__ = (
        "_requests",
        "arrived_us",
        "connection",
        "end_offset",
        "ended",
        "partition",
        "refuse",
        "reply",
        "request",
        "slot",
        "wait",
    )

    def __init__(
        self,
        requests: RequestCounts,
        connection: Connection,
        request: ShortProduce,
        partition: Partition,
        end_offset: int,
        reply: bytes,
        refuse: Refuse,
    ) -> None:
        self.ended = False
        self.wait: Later[None] | None = None
        """The wait for the commit, unless other requests share it."""
        self._requests = requests
        self.connection = connection
        self.arrived_us = connection.arrived_us
        self.slot = connection.keep_slot(self)
        self.request = request
        self.partition = partition
        self.end_offset = end_offset
        self.reply = reply
        self.refuse = refuse

    def end(self, failure: Exception | None) -> None:
        if failure is None:
            self.finish(None)
        else:
            self.fail(failure)

    def finish(self, _: None) -> None:
        if self._end():
            self._requests.on_produced(PRODUCE, self.arrived_us, self.partition.acknowledged)
            self.connection.fill(self.slot, [self.reply])

    def fail(self, failure: Exception) -> None:
        if self._end():
            self.connection.fill(self.slot, self.refuse(self, _refused(failure)))

    def cancel(self) -> None:
        self.ended = True
        if self.wait is not None:
            self.wait.cancel()

    def _end(self) -> bool:
        """Whether its client still waits."""
        if self.ended:
            return False
        self.ended = True
        return self.connection.is_open


Refuse = Callable[["PendingAck", Refused], list[ReplyPart]]
"""Encodes the reply to a request whose records may not be committed."""

_Group = tuple["Partition", int, int]
"""Partition, its leader epoch at the time of the write, and how many milliseconds its producers wait."""

_End = Callable[[Exception | None], None]
"""Called once with None when the records are committed, or with the reason why they may not be."""


class Acknowledgements:
    def __init__(self, clock: Clock, requests: RequestCounts, wait_ms_max: Callable[[], int]) -> None:
        self._clock = clock
        self._requests = requests
        self._wait_ms_max = wait_ms_max
        self._coming: dict[_Group, list[tuple[int, _End]]] = {}
        """End offset and callback of every request of this turn of the loop."""

    def reply(
        self,
        connection: Connection,
        request: ShortProduce,
        partition: Partition,
        end_offset: int,
        reply: bytes,
        refuse: Refuse,
    ) -> None:
        """Send `reply` to a small request once all below `end_offset` is committed, or what `refuse` encodes."""
        pending = PendingAck(self._requests, connection, request, partition, end_offset, reply, refuse)
        pending.wait = self._wait(partition, end_offset, request.timeout_ms, pending.end)

    def committed(self, writes: Sequence[tuple[Partition, int]], timeout_ms: int) -> Later[list[Refused | None]]:
        """Wait for the commit of all `writes`, each a partition and an end offset; why each is refused, or None."""
        return gather([self._refusal_of(partition, end_offset, timeout_ms) for partition, end_offset in writes])

    def _refusal_of(self, partition: Partition, end_offset: int, timeout_ms: int) -> Later[Refused | None]:
        wait: Later[None] | None = None
        refusal: Later[Refused | None] = Later(lambda: wait.cancel() if wait is not None else None)

        def end(failure: Exception | None) -> None:
            refusal.finish(None if failure is None else _refused(failure))

        wait = self._wait(partition, end_offset, timeout_ms, end)
        return refusal

    def _wait(self, partition: Partition, end_offset: int, timeout_ms: int, end: _End) -> Later[None] | None:
        """Call `end` once all below `end_offset` is committed or refused; returns the wait unless others share it."""
        patience_ms = min(max(timeout_ms, 0), self._wait_ms_max())
        if partition.leader_role is not None:
            return self._wait_for_commit(partition, end_offset, patience_ms, end)
        if not self._coming:
            self._clock.call_soon(self._end_turn)
        self._coming.setdefault((partition, partition.leader_epoch, patience_ms), []).append((end_offset, end))
        return None

    def _end_turn(self) -> None:
        groups, self._coming = self._coming, {}
        for (partition, leader_epoch, patience_ms), group in groups.items():
            end = partial(_end_all, group)
            if partition.leader_epoch != leader_epoch:
                # Another leader may have truncated what was written since: an equally long log proves nothing.
                end(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader has changed; the outcome is unknown"))
            else:
                # Not the end offset of the last one: a duplicate ends where it ended the first time.
                self._wait_for_commit(partition, max(end_offset for end_offset, _ in group), patience_ms, end)

    def _wait_for_commit(self, partition: Partition, end_offset: int, patience_ms: int, end: _End) -> Later[None]:
        later = partition.after_commit(end_offset, None)
        later.expire_after(self._clock, patience_ms, lambda: later.fail(_timed_out(partition)))
        later.then(end, end)
        return later


def _end_all(group: list[tuple[int, _End]], failure: Exception | None) -> None:
    """End every request of a group: a bug in one is raised once all have ended."""
    run_all(partial(end, failure) for _, end in group)


def _timed_out(partition: Partition) -> Refused:
    if partition.leader_role is None:
        return Refused(ErrorCode.REQUEST_TIMED_OUT, "the disk sync did not finish in time; the outcome is unknown")
    if not partition.leader_role.is_writable:
        return Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "too few replicas are in sync; the outcome is unknown"
        )
    return Refused(ErrorCode.REQUEST_TIMED_OUT, "the replicas did not confirm in time; the outcome is unknown")


def _refused(failure: Exception) -> Refused:
    if isinstance(failure, OSError):
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log could not be synced to disk: {failure}")
    if isinstance(failure, Refused):
        return failure
    raise failure
