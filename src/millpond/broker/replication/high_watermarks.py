"""High watermarks of replicated partitions, checkpointed every few seconds and at a clean shutdown.

A leader that has just started has no other source until its followers fetch. The checkpoint may lag but is never too
high: committed records stay committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias
from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.base.ports import Clock, Disk, Workers
from millpond.broker.loop.journal import Journal
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.log.checkpoints import DamagedCheckpoint, encode_offsets, read_offsets

FILE = "high-watermark-checkpoint"
"""Not Kafka's file of that purpose, which is keyed by topic name: a recreated topic must not inherit old offsets."""

LOOKS_AT_ONCE: Final = 500
"""Partitions read per turn of the event loop."""

Mark: TypeAlias = tuple[UUID, int, int]
"""Topic ID, partition index and high watermark."""


class HighWatermarks:
    def __init__(
        self,
        clock: Clock,
        disk: Disk,
        folder: str,
        workers: Workers,
        partitions: Partitions,
        journal: Journal,
        also: Callable[[], list[Mark]] = list,
    ) -> None:
        """`also` returns further offsets to checkpoint, which nothing reads back here."""
        self._clock = clock
        self._disk = disk
        self._path = f"{folder}/{FILE}"
        self._workers = workers
        self._partitions = partitions
        self._journal = journal
        self._also = also
        self._written: dict[TopicPartition, int] = {}
        self._noted: list[Mark] = []
        """What was written last."""
        self._unopened: dict[TopicPartition, int] = {}
        """Offsets from the previous run for partitions not opened yet; they stay in the file."""
        self._is_loaded = False
        self._is_away = False

    def load(self) -> None:
        try:
            self._written = read_offsets(self._disk, self._path)
        except DamagedCheckpoint as damage:
            # The high watermarks are determined again from the followers' fetches.
            self._journal("recovery", note=f"{self._path}: {damage}")
        self._unopened = dict(self._written)
        self._is_loaded = True

    def of(self, topic_id: UUID, index: int) -> int:
        """The checkpointed offset of a partition that is being opened; 0 if there is none."""
        if not self._written:
            return 0
        name = TopicPartition(str(topic_id), index)
        self._unopened.pop(name, None)
        return self._written.get(name, 0)

    def forget_but(self, ours: Iterable[tuple[UUID, int]]) -> None:
        """Drop offsets of partitions that are not this node's."""
        if self._unopened:
            names = {TopicPartition(str(topic_id), index) for topic_id, index in ours}
            self._unopened = {name: offset for name, offset in self._unopened.items() if name in names}

    def write(self) -> None:
        """Write the checkpoint on a worker: for thousands of partitions, formatting alone takes a while."""
        if not self._is_away:
            self._is_away = True
            self._look_up(iter(self._partitions), [])

    def _look_up(self, left: Iterator[Partition], current: list[Mark]) -> None:
        """Read some per turn of the event loop; high watermarks only grow, so none is too high when written."""
        some = list(islice(left, LOOKS_AT_ONCE))
        current += _marks_of(some)
        if len(some) == LOOKS_AT_ONCE:
            self._clock.call_soon(lambda: self._look_up(left, current))
            return
        current += self._also_noted()
        if current == self._noted:
            self._is_away = False
        else:
            self._write(current)

    def _also_noted(self) -> list[Mark]:
        """After a start the known offset may at first be lower than the one checkpointed in the previous run."""
        return [
            (topic_id, index, max(offset, self._unopened.get(TopicPartition(str(topic_id), index), 0)))
            for topic_id, index, offset in self._also()
        ]

    def _write(self, current: list[Mark]) -> None:
        unopened = dict(self._unopened)

        def write() -> dict[TopicPartition, int]:
            offsets = unopened | _by_name(current)
            self._disk.replace(self._path, encode_offsets(offsets))
            return offsets

        def end(offsets: dict[TopicPartition, int]) -> None:
            self._is_away = False
            self._noted, self._written = current, offsets

        def fail(error: Exception) -> None:
            self._is_away = False
            if not isinstance(error, OSError):
                raise error
            self._journal("checkpoint failed", error=str(error))

        self._workers.run(write).then(end, fail)

    def close(self) -> None:
        """Write the checkpoint now. Blocks on disk I/O."""
        if not self._is_loaded:
            # This process never locked the folder: another one may own it.
            return
        offsets = self._unopened | _by_name(_marks_of(self._partitions) + self._also_noted())
        if offsets == self._written:
            return
        try:
            self._disk.replace(self._path, encode_offsets(offsets))
        except OSError as error:
            self._journal("checkpoint failed", error=str(error))


def _marks_of(partitions: Iterable[Partition]) -> list[Mark]:
    return [(each.topic_id, each.name.partition, each.committed_offset) for each in partitions if each.is_replicated]


def _by_name(marks: list[Mark]) -> dict[TopicPartition, int]:
    names: dict[UUID, str] = {}
    return {
        TopicPartition(names.get(topic_id) or names.setdefault(topic_id, str(topic_id)), index): offset
        for topic_id, index, offset in marks
    }
