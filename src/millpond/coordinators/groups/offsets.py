"""The committed offsets of all groups of a shard, and those that wait for a transaction's end.

This is the content of the log; only `replay…` changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.groups.memory import (
    OFFSET_BYTES,
    PENDING_OFFSET_BYTES,
    TOPIC_OF_OFFSETS_BYTES,
    GroupMemory,
    text_bytes,
)
from millpond.coordinators.groups.records import OffsetKey
from millpond.metadata.image import Image
from millpond.wire.messages import OffsetCommitValue


class Committed(NamedTuple):
    """One committed offset. `record_offset` is that of its record in the coordinator's log."""

    offset: int
    leader_epoch: int
    metadata: str
    since_ms: int
    """When it was committed, in coordinator time: the timestamps in records depend on the wall clock."""
    keep_ms: int
    """The retention that its client requested; -1 leaves that to the coordinator."""
    record_offset: int
    topic_id: UUID = NO_TOPIC_ID
    """The topic it was committed for; unknown in records of older versions."""

    @classmethod
    def from_record(cls, value: OffsetCommitValue, record_offset: int, since_ms: int) -> Committed:
        asks = value.expire_timestamp >= 0
        keep_ms = max(value.expire_timestamp - value.commit_timestamp, 0) if asks else -1
        return cls(value.offset, value.leader_epoch, value.metadata, since_ms, keep_ms, record_offset, value.topic_id)


@dataclass(slots=True)
class Pending:
    """The offsets of one producer's open transaction."""

    epoch: int
    offsets: dict[OffsetKey, Committed] = field(default_factory=dict)


ByPartition = dict[int, Committed]


def topic_bytes(topic: str) -> int:
    return TOPIC_OF_OFFSETS_BYTES + text_bytes(topic)


def pending_bytes(key: OffsetKey, metadata: str) -> int:
    return PENDING_OFFSET_BYTES + text_bytes(key.topic) + text_bytes(metadata)


class Offsets:
    def __init__(self, memory: GroupMemory | None = None, image: Image | None = None) -> None:
        self.memory = memory or GroupMemory()
        self._image = image or Image()
        self.by_group: dict[str, dict[str, ByPartition]] = {}
        self.pending: dict[int, Pending] = {}
        """By producer id."""
        self._producers: dict[str, dict[OffsetKey, dict[int, None]]] = {}
        """By group: the offsets that wait for a transaction, each with its producers."""
        self.deleted: dict[str, int] = {}
        """Deleted topics, each with the last record of its offsets: those are about to be removed."""
        self.noted_deleted: dict[str, int] = {}
        """Those of them that are recorded in the log, for the next coordinator."""
        self.outdated: dict[str, set[str]] = {}
        """Topics by group with offsets in the log for an earlier topic of that name, according to their topic ids."""

    # Reading.

    def get(self, key: OffsetKey) -> Committed | None:
        return self.by_group.get(key.group_id, {}).get(key.topic, {}).get(key.partition)

    def of_group(self, group_id: str) -> Iterator[tuple[OffsetKey, Committed]]:
        for topic, partitions in self.by_group.get(group_id, {}).items():
            for partition, committed in partitions.items():
                yield OffsetKey(group_id, topic, partition), committed

    def count_of_group(self, group_id: str) -> int:
        return sum(map(len, self.by_group.get(group_id, {}).values()))

    def is_pending(self, key: OffsetKey) -> bool:
        """Whether an open transaction would change this offset."""
        return key in self._producers.get(key.group_id, ())

    def pending_of_group(self, group_id: str) -> list[OffsetKey]:
        return list(self._producers.get(group_id, ()))

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._producers

    def has_any(self, group_id: str) -> bool:
        return group_id in self.by_group or group_id in self._producers

    def keys_to_forget(self, group_id: str) -> list[OffsetKey]:
        """Every key of the group that the log still holds."""
        committed = (key for key, _ in self.of_group(group_id))
        return list(dict.fromkeys((*committed, *self.pending_of_group(group_id))))

    def topics(self) -> frozenset[str]:
        """Every topic for which a group has an offset."""
        committed = {topic for by_topic in self.by_group.values() for topic in by_topic}
        return frozenset(committed | {key.topic for pending in self.pending.values() for key in pending.offsets})

    # Deleted topics.

    def is_deleted(self, topic: str, committed: Committed) -> bool:
        """Whether the topic it was committed for is gone, even if another has its name now."""
        return committed.record_offset <= self.deleted.get(topic, -1) or self.is_outdated(topic, committed)

    def is_outdated(self, topic: str, committed: Committed) -> bool:
        """Whether the topic id shows that it was committed for an earlier topic of this name.

        The image is never behind that of the coordinator that wrote the record: it includes the later election.
        """
        if committed.topic_id == NO_TOPIC_ID:
            return False
        existing = self._image.topics.get(topic)
        return existing is None or existing.id != committed.topic_id

    def is_pending_anew(self, key: OffsetKey) -> bool:
        """Whether an open transaction has committed it for the current topic of that name."""
        return any(not self.is_deleted(key.topic, each) for each in self._waiting(key))

    def groups_of_topics(self, topics: frozenset[str]) -> list[str]:
        """The groups that have offsets of them."""
        groups = {group_id: None for group_id, by_topic in self.by_group.items() if not topics.isdisjoint(by_topic)}
        for pending in self.pending.values():
            groups.update((key.group_id, None) for key in pending.offsets if key.topic in topics)
        return list(groups)

    def deleted_of_group(self, group_id: str) -> Iterator[OffsetKey]:
        """Every key of the group with an offset that is about to be removed; keys may repeat."""
        by_topic = self.by_group.get(group_id, {})
        for topic in sorted(by_topic.keys() & (self.deleted.keys() | self.outdated.get(group_id, ()))):
            for partition, committed in by_topic[topic].items():
                if self.is_deleted(topic, committed):
                    yield OffsetKey(group_id, topic, partition)
        for key in self._producers.get(group_id, ()):
            offset = self.get(key)
            # A commit since then stays when that transaction ends: its record is the later one.
            is_replaced = offset is not None and not self.is_deleted(key.topic, offset)
            if not is_replaced and any(self.is_deleted(key.topic, each) for each in self._waiting(key)):
                yield key

    def _waiting(self, key: OffsetKey) -> Iterator[Committed]:
        """What open transactions have committed there."""
        producers = self._producers.get(key.group_id, {}).get(key, ())
        return (self.pending[producer].offsets[key] for producer in producers)

    # Memory.

    def growth_of_all(self, metadata_by_key: Mapping[OffsetKey, str]) -> int:
        """How much more memory offsets of one group with this metadata would take than the existing ones."""
        topics = {key.topic: key.group_id for key in metadata_by_key}
        new = (topic for topic, group_id in topics.items() if topic not in self.by_group.get(group_id, {}))
        return sum(map(topic_bytes, new)) + sum(self._growth_alone(*each) for each in metadata_by_key.items())

    def growth_bytes(self, key: OffsetKey, metadata: str) -> int:
        """How much more memory this offset would take than the existing one."""
        is_first = key.topic not in self.by_group.get(key.group_id, {})
        return self._growth_alone(key, metadata) + (topic_bytes(key.topic) if is_first else 0)

    def _growth_alone(self, key: OffsetKey, metadata: str) -> int:
        """The same without its topic."""
        committed = self.get(key)
        if committed is not None:
            return text_bytes(metadata) - text_bytes(committed.metadata)
        return OFFSET_BYTES + text_bytes(metadata)

    def pending_growth_bytes(self, producer_id: int, key: OffsetKey, metadata: str) -> int:
        """The same for an offset that waits for the producer's transaction."""
        under_way = self.pending.get(producer_id)
        pending = None if under_way is None else under_way.offsets.get(key)
        return pending_bytes(key, metadata) - (0 if pending is None else pending_bytes(key, pending.metadata))

    # Changing.

    def replay(self, key: OffsetKey, committed: Committed | None) -> None:
        """Set or delete an offset; a deletion also drops what transactions would have made of it."""
        if committed is not None:
            self._note_outdated(key, committed)
            self.memory.take(self.growth_bytes(key, committed.metadata))
            self.by_group.setdefault(key.group_id, {}).setdefault(key.topic, {})[key.partition] = committed
            return
        by_topic = self.by_group.get(key.group_id, {})
        if key.partition in by_topic.get(key.topic, {}):
            gone = by_topic[key.topic].pop(key.partition)
            self.memory.take(-OFFSET_BYTES - text_bytes(gone.metadata))
            if not by_topic[key.topic]:
                del by_topic[key.topic]
                self.memory.take(-topic_bytes(key.topic))
            if not by_topic:
                del self.by_group[key.group_id]
        for producer in list(self._producers.get(key.group_id, {}).get(key, ())):
            waiting = self.pending[producer].offsets.pop(key)
            self.memory.take(-pending_bytes(key, waiting.metadata))
            self._forget_producer(key, producer)

    def replay_deleted(self, topic: str, last_offset: int | None) -> None:
        if last_offset is None:
            self.noted_deleted.pop(topic, None)
        else:
            self.noted_deleted[topic] = last_offset

    def _note_outdated(self, key: OffsetKey, committed: Committed) -> None:
        if self.is_outdated(key.topic, committed):
            self.outdated.setdefault(key.group_id, set()).add(key.topic)

    def replay_pending(self, producer_id: int, epoch: int, key: OffsetKey, committed: Committed) -> None:
        self._note_outdated(key, committed)
        self.memory.take(self.pending_growth_bytes(producer_id, key, committed.metadata))
        pending = self.pending.setdefault(producer_id, Pending(epoch))
        pending.epoch = max(pending.epoch, epoch)
        pending.offsets[key] = committed
        self._producers.setdefault(key.group_id, {}).setdefault(key, {})[producer_id] = None

    def _forget_producer(self, key: OffsetKey, producer_id: int) -> None:
        by_key = self._producers[key.group_id]
        del by_key[key][producer_id]
        if not by_key[key]:
            del by_key[key]
        if not by_key:
            del self._producers[key.group_id]

    def replay_marker(self, producer_id: int, epoch: int, committed: bool) -> list[OffsetKey]:
        """End a transaction; the keys that were waiting for it."""
        pending = self.pending.get(producer_id)
        # A marker of an earlier epoch belongs to an earlier transaction; what waits here is newer.
        if pending is None or epoch < pending.epoch:
            return []
        del self.pending[producer_id]
        self.memory.take(-sum(pending_bytes(key, each.metadata) for key, each in pending.offsets.items()))
        for key in pending.offsets:
            self._forget_producer(key, producer_id)
        for key, each in pending.offsets.items() if committed else ():
            old_offset = self.get(key)
            # Compaction keeps the last record of a key, not the last one that took effect: the later record wins here
            # too.
            if old_offset is None or each.record_offset > old_offset.record_offset:
                self.replay(key, each)
        return list(pending.offsets)
