"""The partitions of this node: each a log with its place in the cluster and those who watch it grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import LeaderEpoch, TopicPartition
from millpond.base.ports import Buffer, Clock
from millpond.base.settings import Settings
from millpond.config import topic as topic_settings
from millpond.log.limits import FOREVER
from millpond.log.partition_log import Appended, LogRanges, PartitionLog
from millpond.log.producers import Verification
from millpond.metadata.image import INTERNAL_TOPICS
from millpond.wire import batch

ZSTD = 4

MARKER_BYTES = batch.HEADER_BYTES + 17
"""How much the end of a transaction adds to a log, or nearly so."""


class Watcher(Protocol):
    """Somebody who waits for a partition to grow."""

    def on_append(self, partition: Partition, size: int) -> None:
        """It has grown by so many bytes. Called for every append: must cost next to nothing."""
        ...

    def answer(self) -> None:
        """Wait no longer."""
        ...


class Partition:
    """One partition that this node leads."""

    __slots__ = (
        "_clock",
        "_flush",
        "acknowledges_after_sync",
        "flush_messages",
        "is_internal",
        "leader_epoch",
        "log",
        "name",
        "topic_id",
        "watchers",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: UUID,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
        clock: Clock,
        flush: Callable[[Partition], None],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.acknowledges_after_sync = True
        self.is_internal = name.topic in INTERNAL_TOPICS
        # A dictionary, because a set would wake its members in an order that differs from run to run.
        self.watchers: dict[Watcher, None] = {}
        self.flush_messages = FOREVER
        self._clock = clock
        self._flush = flush

    @property
    def committed_offset(self) -> int:
        """Below it nothing can be lost to what the topic promises to survive; readers see no further.

        With one replica all that is written counts as committed (docs/decisions/0002). On the wire: high watermark.
        """
        return self.log.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        return self.log.stable_offset(self.committed_offset)

    def configure(self, settings: Settings) -> None:
        """Obey changed settings from the next request on."""
        self.acknowledges_after_sync = settings[topic_settings.FLUSH_ACK] != "never"
        self.flush_messages = settings[topic_settings.FLUSH_MESSAGES]

    def append(self, records: Buffer | None, *, zstd: bool, verification: Verification | None = None) -> Appended:
        """Append a producer's batches and wake whoever waits for them. Refused leaves everything as it was."""
        if not records:
            raise Refused(ErrorCode.INVALID_RECORD, "the request has no records for this partition")
        assert isinstance(records, memoryview), "a decoded request holds its records as a view"
        if self.is_internal:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only the broker itself writes to {self.name.topic}")
        attributes = _attributes(records)
        if attributes & batch.CODEC_MASK == ZSTD and not zstd:
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")
        appended = self.log.append(
            records, leader_epoch=self.leader_epoch, now_ms=self._clock.wall_ms(), verification=verification
        )
        if not appended.duplicate:
            self._wake_watchers(len(records))
            # Files that wait for a sync stay open: with too many of them nothing else could be opened.
            if self.log.files.is_pressed or self.log.end_offset - self.log.synced_offset >= self.flush_messages:
                self._flush(self)
        return appended

    def append_marker(
        self, producer_id: int, epoch: int, committed: bool, coordinator_epoch: int, transaction_version: int
    ) -> Appended:
        """Write how a producer's transaction ended."""
        appended = self.log.append_marker(
            producer_id,
            epoch,
            committed,
            coordinator_epoch,
            now_ms=self._clock.wall_ms(),
            leader_epoch=self.leader_epoch,
            transaction_version=transaction_version,
        )
        self._wake_watchers(MARKER_BYTES)
        return appended

    def append_own(self, batch: bytes, verification: Verification | None = None) -> Appended:
        """Append a batch of the broker's own making."""
        appended = self.log.append(
            memoryview(bytearray(batch)),
            leader_epoch=self.leader_epoch,
            now_ms=self._clock.wall_ms(),
            from_client=False,
            verification=verification,
        )
        self._wake_watchers(len(batch))
        return appended

    def _wake_watchers(self, size: int) -> None:
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.on_append(self, size)

    def dismiss_watchers(self) -> None:
        """There is nothing more to wait for."""
        for watcher in list(self.watchers):
            watcher.answer()

    def read(
        self, offset: int, bytes_max: int, *, at_least_one_batch: bool, upper_offset: int | None = None
    ) -> LogRanges:
        """The bytes from `offset` on, not yet read; without ranges when there are none yet."""
        return self.log.read_ranges(offset, bytes_max, upper_offset=upper_offset, min_one=at_least_one_batch)

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuse a client whose view of the leadership is older or newer than ours; -1 does not ask."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and the offset at which it ended; -1 and -1 when unknown."""
        if epoch == self.leader_epoch:
            return epoch, self.log.end_offset
        if self.log.last_epoch < epoch < self.leader_epoch:
            # Nothing was written in it, nor since. A reader for whom it is unknown begins anew, maybe at record 0.
            return max(self.log.last_epoch, 0), self.log.end_offset
        return self.log.end_offset_for_epoch(epoch)


def _attributes(records: memoryview) -> int:
    """The attributes of the first batch; 0 where there is no whole header, which the log then refuses."""
    return records[22] if len(records) >= batch.HEADER_BYTES else 0


class Partitions:
    """All partitions of this node, by name and by topic id."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_topic: dict[UUID, dict[int, Partition]] = {}
        self._by_raw_name: dict[tuple[bytes, int], Partition] = {}
        self._by_raw_id: dict[tuple[bytes, int], Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def by_id(self, topic_id: UUID, index: int) -> Partition | None:
        topic = self._by_topic.get(topic_id)
        return None if topic is None else topic.get(index)

    def by_raw(self, topic: bytes, index: int, *, is_id: bool) -> Partition | None:
        """By the topic's name or id as it stands in a frame."""
        return (self._by_raw_id if is_id else self._by_raw_name).get((topic, index))

    def of_topic(self, topic_id: UUID) -> list[Partition]:
        return list(self._by_topic.get(topic_id, {}).values())

    def add(self, partition: Partition) -> None:
        self._by_name[partition.name] = partition
        name, index = partition.name
        self._by_topic.setdefault(partition.topic_id, {})[index] = partition
        self._by_raw_name[name.encode(), index] = partition
        self._by_raw_id[partition.topic_id.bytes, index] = partition

    def discard(self, partition: Partition) -> None:
        """Forget a partition; whoever watches it finds it gone."""
        del self._by_name[partition.name]
        name, index = partition.name
        del self._by_raw_name[name.encode(), index]
        del self._by_raw_id[partition.topic_id.bytes, index]
        topic = self._by_topic[partition.topic_id]
        del topic[index]
        if not topic:
            del self._by_topic[partition.topic_id]
        partition.dismiss_watchers()
