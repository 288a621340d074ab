"""Produce requests that wait for their records to become durable, grouped by turn of the loop.

Many clients with one small request each are the most expensive load. Requests that arrive in the same turn for the
same partition with the same timeout share one timer, one wait and one sync, which starts when the turn ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, failed, run_all
from millpond.base.pending import Pending
from millpond.base.ports import Clock, ReplyPart
from millpond.broker.requests.request_counts import RequestCounts

if TYPE_CHECKING:
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.connection import Connection


class TooLate(Exception):
    """The disk or the other replicas did not confirm within the client's timeout."""


class Asked(Protocol):
    """The fields of a request that its refusal needs."""

    @property
    def version(self) -> int: ...

    @property
    def correlation_id(self) -> int: ...

    @property
    def client_id(self) -> bytes | None: ...

    @property
    def key(self) -> bytes:
        """Its topic and partition, as `Partitions.by_raw` takes them."""
        ...


class PendingAck(Pending[None]):
    """A request whose records are written, and the reply that it gets once they are durable."""

    __slots__ = (
        "_acknowledgements",
        "arrived_us",
        "connection",
        "end_offset",
        "ended",
        "partition",
        "reply",
        "request",
        "slot",
    )

    def __init__(
        self,
        acknowledgements: Acknowledgements,
        connection: Connection,
        request: Asked,
        reply: bytes,
        partition: Partition,
        end_offset: int,
    ) -> None:
        self.ended = False
        self._acknowledgements = acknowledgements
        self.connection = connection
        self.arrived_us = connection.arrived_us
        self.slot = connection.keep_slot(self)
        self.request = request
        self.reply = reply
        self.partition = partition
        self.end_offset = end_offset

    def finish(self, _: None) -> None:
        if self._end():
            self._acknowledgements.count(self)
            self.connection.fill(self.slot, [self.reply])

    def fail(self, failure: Exception) -> None:
        if self._end():
            self.connection.fill(self.slot, self._acknowledgements.refuse(self, failure))

    def cancel(self) -> None:
        self.ended = True

    def _end(self) -> bool:
        """Whether its client still waits for it."""
        if self.ended:
            return False
        self.ended = True
        return self.connection.is_open


Refuse = Callable[[PendingAck, Exception], list[ReplyPart]]
"""Encodes the reply to a request whose records may be lost."""

_Group = tuple["Partition", int, int]
"""Partition, its leader epoch at the write, and the producers' timeout in milliseconds."""


class Acknowledgements:
    """For partitions without followers, whose records are durable once they are synced."""

    def __init__(self, api_key: int, clock: Clock, requests: RequestCounts, refuse: Refuse) -> None:
        self.refuse = refuse
        self._api_key = api_key
        self._clock = clock
        self._requests = requests
        self._groups: dict[_Group, list[PendingAck]] = {}

    def add(
        self,
        connection: Connection,
        request: Asked,
        reply: bytes,
        partition: Partition,
        end_offset: int,
        timeout_ms: int,
    ) -> None:
        """Send `reply` once everything below `end_offset` is durable; refuse if that fails or takes too long."""
        if not self._groups:
            self._clock.call_soon(self._end_turn)
        pending = PendingAck(self, connection, request, reply, partition, end_offset)
        self._groups.setdefault((partition, partition.leader_epoch, timeout_ms), []).append(pending)

    def count(self, pending: PendingAck) -> None:
        self._requests.on_produced(self._api_key, pending.arrived_us, pending.partition.acknowledged)

    def _end_turn(self) -> None:
        groups, self._groups = self._groups, {}
        for (partition, leader_epoch, timeout_ms), group in groups.items():
            self._wait(partition, leader_epoch, timeout_ms, group)

    def _wait(self, partition: Partition, leader_epoch: int, timeout_ms: int, group: list[PendingAck]) -> None:
        later: Later[None]
        if partition.leader_epoch != leader_epoch:
            # Another leader may have truncated the records: a log that is as long again proves nothing.
            later = failed(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership has moved; the outcome is open"))
        else:
            # Not the last one's end offset: a retried batch ends where it ended the first time.
            later = partition.after_commit(max(pending.end_offset for pending in group), None)
        later.expire_after(self._clock, timeout_ms, lambda: later.fail(TooLate()))

        def finish(_: None) -> None:
            run_all(partial(pending.finish, None) for pending in group)

        def fail(failure: Exception) -> None:
            run_all(partial(pending.fail, failure) for pending in group)

        later.then(finish, fail)
