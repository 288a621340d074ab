"""Copies replicas whose logs have failed, through a sync error or a damaged batch, from their leaders again.

Such a replica may lack records that others count on. A leader gives its leadership away (`isr`); a follower stops
fetching and falls behind. Once the metadata no longer counts on the replica (ISR, ELR, last known), it is copied
again. If that takes too long (the partition is idle, or the replica is in the ELR), the node reports that it has lost
records and rejoins as a broker that has to catch up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol
from uuid import UUID

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Clock, Timer, Workers
from millpond.broker.loop.journal import Journal
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.log.scan import Damaged
from millpond.wire.batch import HEADER_BYTES, CorruptBatch, check_batch, read_header

LOOK_MS: Final = 500
CONFESS_MS: Final = 20_000
"""How long a failed replica may be counted on; a leader takes ten seconds to drop a follower from the ISR."""
LOOKS_AT_ONCE: Final = 500
CHECK_BYTES: Final = 1 << 20


class Life(Protocol):
    """This node's registration in the cluster."""

    @property
    def is_unfenced(self) -> bool: ...

    def report_lost_records(self) -> None: ...


class FailedReplicas:
    def __init__(
        self,
        *,
        node_id: int,
        clock: Clock,
        workers: Workers,
        partitions: Partitions,
        life: Life,
        copy_anew: Callable[[Partition], bool],
        resign_leadership: Callable[[UUID, int], None],
        journal: Journal,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._workers = workers
        self._partitions = partitions
        self._life = life
        self._copy_anew = copy_anew
        self._resign_leadership = resign_leadership
        self._journal = journal
        self._timer: Timer | None = None
        self._to_look_at: list[Partition] = []
        self._failed_ms: dict[Partition, int] = {}
        """Since when each failed replica has been counted on."""
        self._doubted: set[Partition] = set()

    def start(self) -> None:
        self._timer = self._clock.call_later(LOOK_MS, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._clock.call_later(LOOK_MS, self._look)
        now_ms = self._clock.monotonic_ms()
        self._to_look_at = self._to_look_at or list(self._partitions)
        some, self._to_look_at = self._to_look_at[:LOOKS_AT_ONCE], self._to_look_at[LOOKS_AT_ONCE:]
        for partition in some:
            if partition.log.durability.failed is not None:
                self._look_at(partition, now_ms)
        for partition in [each for each in self._failed_ms if not self._is_here(each)]:
            del self._failed_ms[partition]
        if self._life.is_unfenced and any(now_ms - since_ms >= CONFESS_MS for since_ms in self._failed_ms.values()):
            self._failed_ms = {}
            self._life.report_lost_records()

    def _look_at(self, partition: Partition, now_ms: int) -> None:
        if not self._is_here(partition) or not partition.is_replicated:
            return
        if self._copy_anew(partition) or not self._can_be_had(partition):
            self._failed_ms.pop(partition, None)
            return
        self._failed_ms.setdefault(partition, now_ms)
        if partition.is_leader:
            self._resign_leadership(partition.topic_id, partition.name.partition)

    def _is_here(self, partition: Partition) -> bool:
        return self._partitions.by_id(partition.topic_id, partition.name.partition) is partition

    def _can_be_had(self, partition: Partition) -> bool:
        """Whether another node has the records."""
        view = partition.view
        return view is not None and any(other != self._node_id for other in view.isr)

    def doubt(self, partition: Partition, offset: int) -> None:
        """A follower keeps fetching the same offset: check whether our records there are damaged."""
        if partition not in self._doubted:
            self._doubted.add(partition)
            self.check(partition, offset).then(lambda _: self._doubted.discard(partition))

    def check(self, partition: Partition, offset: int) -> Later[int]:
        """Verify a piece of our own log from `offset` on, on a worker; returns the offset up to which it is sound.

        If it is damaged and another node has the records, the replica fails and is copied from there.
        """
        if partition.log.failed is not None:
            return done(offset)
        try:
            part = partition.log.read(offset, CHECK_BYTES, upper_offset=partition.committed_offset).range
        except Refused as refusal:
            if isinstance(refusal.__cause__, Damaged):
                self._on_damage(partition, refusal.__cause__)
            return done(offset)
        if part is None:
            return done(offset)

        def checked(found: Checked) -> int:
            part.file.release()
            if found.damage is not None:
                self._on_damage(partition, found.damage)
            return max(found.upper_offset, offset)

        end_offset = partition.log.end_offset
        check = self._workers.run(lambda: _checked(part.file.read_at(part.position, part.length), end_offset))
        return check.recover(OSError, lambda error: Checked(Damaged(part.position, str(error)), -1)).map(checked)

    def _on_damage(self, partition: Partition, damage: Damaged) -> None:
        if partition.log.failed is None and self._can_be_had(partition):
            self._journal("a batch of this node is damaged", partition=partition.name.folder, error=str(damage))
            partition.log.fail(damage)


class Checked(NamedTuple):
    """The damage found in a piece of a log, and the offset up to which it is sound."""

    damage: Damaged | None
    upper_offset: int


def _checked(data: bytes, end_offset: int) -> Checked:
    """Check the batches. The checksum does not cover offsets and leader epochs: only check that they never
    decrease."""
    position, upper_offset, epoch = 0, -1, -1
    while position < len(data):
        left = len(data) - position
        if position and (left < HEADER_BYTES or read_header(data, position).size > left):
            # The last batch was not read whole.
            break
        try:
            check_batch(data, position, len(data), compacted=True)
        except CorruptBatch as fault:
            return Checked(Damaged(position, str(fault)), upper_offset)
        header = read_header(data, position)
        if not upper_offset <= header.base_offset < header.next_offset <= end_offset or header.leader_epoch < epoch:
            return Checked(Damaged(position, f"offset {header.base_offset} of {header.leader_epoch}"), upper_offset)
        position, upper_offset, epoch = position + header.size, header.next_offset, header.leader_epoch
    return Checked(None, upper_offset)
