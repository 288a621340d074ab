"""Up to where partitions of several replicas were committed, written down every few seconds and at a clean stop.

A leader that has just started knows nothing else of it until its followers have fetched. What is written may lag, and
is never too high: what is committed stays so.
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.base.ports import Disk, Workers
from millpond.broker.housekeeping import Journal
from millpond.broker.replication.partitions import Partitions
from millpond.log.checkpoints import DamagedCheckpoint, encode_offsets, read_offsets

FILE = "high-watermark-checkpoint"
"""Not Kafka's own, which goes by names: a topic that has another one's name must not inherit its offsets."""

_Mark: TypeAlias = tuple[UUID, int, int]
"""Topic id and index of a partition, and its offset."""


class HighWatermarks:
    def __init__(self, disk: Disk, folder: str, workers: Workers, partitions: Partitions, journal: Journal) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE}"
        self._workers = workers
        self._partitions = partitions
        self._journal = journal
        self._written: dict[TopicPartition, int] = {}
        self._noted: list[_Mark] = []
        """What was written last, as `_current` gave it."""
        self._is_away = False

    def load(self) -> None:
        try:
            self._written = read_offsets(self._disk, self._path)
        except DamagedCheckpoint as damage:
            # They are found out anew from the followers.
            self._journal("recovery", note=f"{self._path}: {damage}")

    def of(self, topic_id: UUID, index: int) -> int:
        """As it was written down; 0 if it never was."""
        return self._written.get(TopicPartition(str(topic_id), index), 0)

    def write(self) -> None:
        """Write down what has changed, on a worker: for thousands of partitions the text alone takes a while."""
        current = self._current()
        if self._is_away or current == self._noted:
            return
        self._is_away = True

        def write() -> dict[TopicPartition, int]:
            offsets = _by_name(current)
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
        """The same at once. Waits for the disk."""
        offsets = _by_name(self._current())
        if offsets != self._written:
            self._disk.replace(self._path, encode_offsets(offsets))

    def _current(self) -> list[_Mark]:
        return [
            (each.topic_id, each.name.partition, each.committed_offset)
            for each in self._partitions
            if each.is_replicated
        ]


def _by_name(marks: list[_Mark]) -> dict[TopicPartition, int]:
    names: dict[UUID, str] = {}
    return {
        TopicPartition(names.get(topic_id) or names.setdefault(topic_id, str(topic_id)), index): offset
        for topic_id, index, offset in marks
    }
