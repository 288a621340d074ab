"""Notices that the disk fails this node's replicas, and mends what other nodes have.

While the disk takes no writes the node stands aside, so that others lead. A replica whose log has failed (by a sync,
or by a damaged batch) may lack what others count on: the node says so, and once nobody counts on the replica any more
it is copied anew from its leader. Where no other node is in sync everything stays as it is: standing aside would take
away what can still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from millpond.base.errors import Refused
from millpond.base.ports import Clock, Disk, Timer, Workers
from millpond.broker.housekeeping import Journal
from millpond.broker.partitions import Partition, Partitions
from millpond.log.scan import Damaged
from millpond.log.store import LogStore
from millpond.wire.batch import HEADER_BYTES, CorruptBatch, check_batch, read_header

LOOK_MS: Final = 500
PROBE_BYTES: Final = 1 << 20
"""So much must fit on the disk before the node comes back."""
REST_MS: Final = 1_000
REST_MS_MAX: Final = 60_000
"""How long the disk must have been well before the node comes back; longer each time it fails again soon."""
CONFESS_MS: Final = 10_000
"""How long to wait before failed replicas are told of again."""
CHECK_BYTES: Final = 1 << 20


class Life(Protocol):
    """This node as one of the cluster."""

    @property
    def is_let_in(self) -> bool: ...

    def stand_aside(self, is_aside: bool) -> None: ...

    def confess(self) -> None: ...


class DiskWatch:
    def __init__(
        self,
        *,
        node_id: int,
        clock: Clock,
        disk: Disk,
        workers: Workers,
        store: LogStore,
        partitions: Partitions,
        life: Life,
        copy_anew: Callable[[Partition], bool],
        journal: Journal,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._disk = disk
        self._workers = workers
        self._store = store
        self._partitions = partitions
        self._life = life
        self._copy_anew = copy_anew
        self._journal = journal
        self._timer: Timer | None = None
        self._failures_seen = 0
        self._failed_ms = 0
        self._rest_ms = REST_MS
        self._is_aside = False
        self._is_probing = False
        self._confessed_ms: int | None = None
        self._doubted: set[Partition] = set()

    def start(self) -> None:
        self._timer = self._clock.call_later(LOOK_MS, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._look_at_writes()
        self._look_at_logs()
        self._timer = self._clock.call_later(LOOK_MS, self._look)

    # A disk that takes no writes.

    def _look_at_writes(self) -> None:
        now_ms = self._clock.monotonic_ms()
        failures = self._store.files.failed_writes
        if failures != self._failures_seen:
            self._failures_seen = failures
            if not self._is_aside and self._life.is_let_in and self._has_others():
                # One that fails again soon after it came back is not well yet.
                is_soon = self._failed_ms and now_ms - self._failed_ms < 2 * self._rest_ms
                self._rest_ms = min(2 * self._rest_ms, REST_MS_MAX) if is_soon else REST_MS
                self._is_aside = True
                self._life.stand_aside(True)
            self._failed_ms = now_ms
        elif self._is_aside and now_ms - self._failed_ms >= self._rest_ms and not self._is_probing:
            self._probe()

    def _has_others(self) -> bool:
        """Whether this node leads something, and all of that could be led by somebody else."""
        led = [each for each in self._partitions if each.is_leader and each.view is not None and each.is_replicated]
        return bool(led) and all(any(other != self._node_id for other in each.view.isr) for each in led if each.view)

    def _probe(self) -> None:
        self._is_probing = True
        path = f"{self._store.folder}/probe"

        def write() -> None:
            self._disk.remove(self._disk.write_aside(path, bytes(PROBE_BYTES)))

        def well(_: None) -> None:
            self._is_probing = False
            if self._failures_seen == self._store.files.failed_writes:
                self._is_aside = False
                self._failed_ms = self._clock.monotonic_ms()
                self._life.stand_aside(False)

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            self._is_probing = False
            self._failed_ms = self._clock.monotonic_ms()

        self._workers.run(write).then(well, failed)

    # Replicas that have failed.

    def _look_at_logs(self) -> None:
        now_ms = self._clock.monotonic_ms()
        is_counted_on = False
        for partition in list(self._failed()):
            if not self._copy_anew(partition):
                is_counted_on |= self._can_be_had(partition)
        is_due = self._confessed_ms is None or now_ms - self._confessed_ms >= CONFESS_MS
        if is_counted_on and is_due and self._life.is_let_in:
            self._confessed_ms = now_ms
            self._life.confess()

    def _failed(self) -> Iterator[Partition]:
        return (each for each in self._partitions if each.log.failed is not None and each.is_replicated)

    def _can_be_had(self, partition: Partition) -> bool:
        view = partition.view
        return view is not None and any(other != self._node_id for other in view.isr)

    # Batches that followers do not accept.

    def doubt(self, partition: Partition, offset: int) -> None:
        """A follower asks again and again for what it was sent: see whether our own bytes are what was written."""
        if partition in self._doubted or partition.log.failed is not None:
            return
        try:
            part = partition.log.read(offset, CHECK_BYTES).range
        except Refused:
            return
        if part is None:
            return
        self._doubted.add(partition)

        def checked(damage: Damaged | None) -> None:
            part.file.release()
            self._doubted.discard(partition)
            if damage is not None and partition.log.failed is None:
                self._journal("a batch of this node is damaged", partition=partition.name.folder, error=str(damage))
                partition.log.fail(damage)

        check = self._workers.run(lambda: _damage(part.file.read_at(part.position, part.length)))
        check.recover(OSError, lambda error: Damaged(part.position, str(error))).then(checked)


def _damage(data: bytes) -> Damaged | None:
    position = 0
    while position < len(data):
        left = len(data) - position
        if position and (left < HEADER_BYTES or read_header(data, position).size > left):
            # The last one of what was read is cut.
            break
        try:
            check_batch(data, position, len(data), compacted=True)
        except CorruptBatch as fault:
            return Damaged(position, str(fault))
        position += read_header(data, position).size
    return None
