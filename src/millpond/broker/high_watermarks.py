"""Up to where partitions of several replicas were committed, written down every few seconds and at a clean stop.

A leader that has just started knows nothing else of it until its followers have fetched. What is written may lag, and
is never too high: what is committed stays so.
"""

from __future__ import annotations

from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.base.ports import Disk, Workers
from millpond.broker.housekeeping import Journal
from millpond.broker.partitions import Partition, Partitions
from millpond.log.checkpoints import DamagedCheckpoint, encode_offsets, read_offsets

FILE = "high-watermark-checkpoint"
"""Not Kafka's own, which goes by names: a topic that has another one's name must not inherit its offsets."""


class HighWatermarks:
    def __init__(self, disk: Disk, folder: str, workers: Workers, partitions: Partitions, journal: Journal) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE}"
        self._workers = workers
        self._partitions = partitions
        self._journal = journal
        self._written: dict[TopicPartition, int] = {}
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
        """Write down what has changed, on a worker."""
        offsets = self._current()
        if self._is_away or offsets == self._written:
            return
        self._is_away = True

        def end(error: Exception | None) -> None:
            self._is_away = False
            if error is None:
                self._written = offsets
            elif isinstance(error, OSError):
                self._journal("checkpoint failed", error=str(error))
            else:
                raise error

        data = encode_offsets(offsets)
        self._workers.run(lambda: self._disk.replace(self._path, data)).then(lambda _: end(None), end)

    def close(self) -> None:
        """The same at once. Waits for the disk."""
        offsets = self._current()
        if offsets != self._written:
            self._disk.replace(self._path, encode_offsets(offsets))

    def _current(self) -> dict[TopicPartition, int]:
        return {_key(each): each.committed_offset for each in self._partitions if each.is_replicated}


def _key(partition: Partition) -> TopicPartition:
    return TopicPartition(str(partition.topic_id), partition.name.partition)
