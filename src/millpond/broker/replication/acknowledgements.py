"""Producers that wait until what they wrote survives: those of one turn of the loop wait as one.

Many clients with a request each are the costliest way to write. What a single one of them would need, a timer, a wait
and a pass of syncs, is needed once for all whose requests came in the same turn, for the same partition and with the
same patience. The pass begins when the turn ends, and so covers all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, failed, run_all
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Clock, ReplyPart
from millpond.broker.requests.connection import Slot
from millpond.broker.requests.request_counts import RequestCounts

if TYPE_CHECKING:
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.connection import Connection


class TooLate(Exception):
    """The disk or other replicas did not confirm within the time that the client gave."""


class Asked(Protocol):
    """What must be known of a request to refuse it after all."""

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


class Parked(NamedTuple):
    """One request that is written, and the reply that it gets if that survives."""

    connection: Connection
    slot: Slot
    asked: Asked
    reply: bytes
    arrived_us: int
    end_offset: int


Refuse = Callable[[Parked, "Partition", Exception], list[ReplyPart]]
"""The reply to a request whose records may not survive."""

_Group = tuple["Partition", int, int]
"""Partition, its leader epoch when it was written to, and for how many milliseconds its producers wait."""


class Acknowledgements:
    """For partitions whose only replica is here: what survives is what is on the disk."""

    def __init__(self, api_key: int, clock: Clock, requests: RequestCounts, refuse: Refuse) -> None:
        self._api_key = api_key
        self._clock = clock
        self._requests = requests
        self._refuse = refuse
        self._coming: dict[_Group, list[Parked]] = {}

    def park(self, partition: Partition, patience_ms: int, parked: Parked) -> None:
        """Answer once all below its end offset survives; refuse it when that cannot be, or takes too long."""
        if not self._coming:
            self._clock.call_soon(self._end_turn)
        self._coming.setdefault((partition, partition.leader_epoch, patience_ms), []).append(parked)

    def _end_turn(self) -> None:
        groups, self._coming = self._coming, {}
        for (partition, leader_epoch, patience_ms), group in groups.items():
            self._wait(partition, leader_epoch, patience_ms, group)

    def _wait(self, partition: Partition, leader_epoch: int, patience_ms: int, group: list[Parked]) -> None:
        later: Later[None]
        if partition.leader_epoch != leader_epoch:
            # Others may have led since, and cut off what was written: that the log is as long again proves nothing.
            later = failed(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership has moved; the outcome is open"))
        else:
            # Not that of the last one: what was sent again ends where it ended the first time.
            later = partition.after_commit(max(parked.end_offset for parked in group), None)
        later.expire_after(self._clock, patience_ms, lambda: later.fail(TooLate()))

        def answer(_: None) -> None:
            self._tell(group, partition, None)

        def refuse(failure: Exception) -> None:
            self._tell(group, partition, failure)

        later.then(answer, refuse)

    def _tell(self, group: list[Parked], partition: Partition, failure: Exception | None) -> None:
        """All of them hear of it, whatever comes of one."""
        run_all(partial(self._tell_one, parked, partition, failure) for parked in group)

    def _tell_one(self, parked: Parked, partition: Partition, failure: Exception | None) -> None:
        connection = parked.connection
        if not connection.is_open:
            return
        if failure is None:
            self._requests.on_produced(self._api_key, parked.arrived_us, partition.acknowledged)
            connection.fill(parked.slot, [parked.reply])
        else:
            connection.fill(parked.slot, self._refuse(parked, partition, failure))
