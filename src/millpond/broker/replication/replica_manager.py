"""Applies committed metadata to this node's replicas: opens them, gives them roles, configures and deletes them.

Folders are created and renamed one partition at a time, in record order and a few per turn of the event loop, so that
a topic of a thousand partitions does not delay other work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from math import ceil
from typing import Protocol
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID, TopicPartition
from millpond.base.later import Later, done
from millpond.base.ports import Clock
from millpond.base.settings import Settings
from millpond.broker.loop.journal import Journal
from millpond.broker.replication.partition_context import PartitionContext
from millpond.broker.replication.partitions import Partition, Partitions, view_of
from millpond.broker.storage.delayed_job import DelayedJob
from millpond.broker.storage.log_limits import log_limits
from millpond.config.effective import NodeLayers
from millpond.log.limits import LogLimits
from millpond.log.partition_log import PartitionLog
from millpond.log.store import LogStore
from millpond.metadata.image import Image, Topic
from millpond.metadata.leadership import NO_LEADER
from millpond.metadata.records import (
    ConfigRecord,
    LeadAnewRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from millpond.metadata.topics import METADATA_TOPIC

REOPEN_MS = 1_000
REOPEN_MS_MAX = 60_000
"""Delay before retrying a log that could not be opened; it doubles each time, since a try takes time."""

LEAVING_MS = 50
"""Delay while the workers are still removing a deleted topic of that name."""


AT_ONCE = 8
"""Partitions created or removed per turn of the event loop; this many take two or three milliseconds."""

CONFIGURED_AT_ONCE = 50
"""Partitions whose settings are changed in one step; two milliseconds if each is of another topic."""

RETIRED_AT_ONCE = 500
"""Partitions of a deleted topic retired per turn of the event loop."""

TURN_MS = 2
"""A turn ends early after this long: on a busy disk one folder may take as long as ten otherwise do."""


class Fetchers(Protocol):
    def follow(self, partition: Partition) -> None: ...

    def forget(self, partition: Partition) -> None: ...

    def is_cutting(self, partition: Partition) -> bool:
        """Whether a truncation keeps the partition from changing its role."""
        ...


class ReplicaManager:
    """Applies committed records. A partition whose log cannot be opened is logged and stays closed."""

    def __init__(
        self,
        *,
        node_id: int,
        image: Image,
        store: LogStore,
        partitions: Partitions,
        layers: Callable[[], NodeLayers],
        clock: Clock,
        context: PartitionContext,
        fetchers: Fetchers,
        high_watermark: Callable[[UUID, int], int],
        remove_later: Callable[[DelayedJob], None],
        journal: Journal,
        on_late: Callable[[], None],
        report_lost_records: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._store = store
        self._partitions = partitions
        self._layers = layers
        self._clock = clock
        self._context = context
        self._fetchers = fetchers
        self._high_watermark = high_watermark
        self._remove_later = remove_later
        self._journal = journal
        self._on_late = on_late
        self._report_lost_records = report_lost_records
        """Reports that this node has lost records that other replicas count on."""
        self._missed: set[TopicPartition] = set()
        """Partitions already reported."""
        self._settings_by_topic: dict[str, tuple[Settings, LogLimits]] = {}
        self._names: dict[UUID, str] = {}
        """All topics, even those without a replica here: their consumer groups may be coordinated here. A
        RemoveTopicRecord has no name, and by then the image has dropped the topic."""
        self._steps: deque[Callable[[], None]] = deque()
        self._to_open: dict[UUID, set[int]] = {}
        self._to_configure: dict[Partition, None] = {}
        """Partitions whose settings have changed, until they are applied."""
        self._to_retire: dict[Partition, None] = {}
        """Partitions of deleted topics: no longer visible, but with requests still pending."""
        self._has_turn = False
        """Whether a turn is scheduled or running."""
        self._is_stopping = False

    def open_all(self, *, at_once: bool = True) -> None:
        """Open a log for every replica that the metadata assigns to this node; set aside logs of unknown topics.

        Records in a folder without a topic ID are set aside, too: they were never synced, since the first sync writes
        the topic ID, and may belong to a deleted topic whose removal was undone by a power failure. The image must be
        caught up: a lagging one lacks topics that exist.
        """
        self._names = {topic.id: topic.name for topic in self._image.topics.values()}
        wanted: dict[TopicPartition, Topic] = {}
        for topic, index, _ in self._image.partitions_of(self._node_id):
            wanted[TopicPartition(topic.name, index)] = topic
        for partition in self._partitions:
            topic_here = wanted.get(partition.name)
            if topic_here is None or topic_here.id != partition.topic_id:
                self._discard(partition)
        for name, log in list(self._store.logs.items()):
            owner = wanted.get(name)
            if owner is None and self._has_moved_away(name, log):
                self._steps.append(partial(self._take_away, name))
            elif name.topic != METADATA_TOPIC and (owner is None or _is_foreign(log, owner)):
                self._set_aside(name)
        for name in [each for each in self._store.damaged if each not in wanted and each.topic != METADATA_TOPIC]:
            # Its topic is unknown, and it would block a new topic of that name.
            try:
                self._set_aside(name)
            except OSError as error:
                self._journal("a folder belongs to no topic and cannot be set aside", reason=str(error))
        # The others were deleted just before the last shutdown.
        self._store.missing &= wanted.keys()
        for name, topic in wanted.items():
            there = self._partitions.by_id(topic.id, name.partition)
            if there is not None:
                self.give_role(there)
            elif at_once:
                self._open(topic, name.partition)
            else:
                self._open_in_turn(topic, name.partition)
        if self._steps and not self._has_turn:
            self._take_turn()

    def on_records(self, records: Sequence[Record]) -> Later[None]:
        """Apply records that are committed and replayed; ends when the logs reflect them, or could not.

        Deleted topics disappear for clients at once. A small topic is open on return.
        """
        queued = len(self._steps)
        self._settings_by_topic.clear()
        # Settings first: a snapshot brings everything at once, and with a smaller ISR a leader still on its old
        # settings would commit records that replicas eligible under the new ones lack.
        self._configure_all(records)
        topic: Topic | None = None
        for record in records:
            match record:
                case TopicRecord():
                    self._names[record.topic_id] = record.name
                case PartitionRecord():
                    # A topic may have thousands of these in a row: look it up once.
                    if topic is None or topic.id is not record.topic_id:
                        topic = self._image.topics_by_id.get(record.topic_id)
                    if topic is not None and self._node_id in record.replicas:
                        self._open_in_turn(topic, record.partition_id)
                case PartitionChangeRecord():
                    self._follow_change(record)
                case LeadAnewRecord() if record.broker_id == self._node_id:
                    self._steps.extend(partial(self.give_role, each) for each in self._partitions if each.is_leader)
                case RemoveTopicRecord():
                    self._delete(record)
                case _:
                    pass
        return self.followed() if len(self._steps) > queued else done(None)

    def followed(self) -> Later[None]:
        """Ends when the logs reflect everything committed so far."""
        later: Later[None] = Later()
        self._steps.append(lambda: later.finish(None))
        if not self._has_turn:
            self._take_turn()
        return later

    def is_to_open(self, topic_id: UUID, index: int | None = None) -> bool:
        """Whether the partition, or any partition of the topic, is still waiting to be opened for the first time."""
        indexes = self._to_open.get(topic_id, ())
        return bool(indexes) if index is None else index in indexes

    def absence(self, topic: str | UUID, index: int) -> ErrorCode:
        """Why a partition is not open here: it does not exist, is not created yet, or is offline."""
        if isinstance(topic, str):
            image_topic, unknown = self._image.topics.get(topic), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            image_topic, unknown = self._image.topics_by_id.get(topic), ErrorCode.UNKNOWN_TOPIC_ID
        if image_topic is None:
            return unknown
        if not 0 <= index < len(image_topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._node_id not in image_topic.partitions[index].replicas or self.is_to_open(image_topic.id, index):
            # Every client retries this one, unlike LEADER_NOT_AVAILABLE, which no Fetch response may carry.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.KAFKA_STORAGE_ERROR

    def stop(self) -> None:
        """Create nothing more: the next start will. Deletions run now, or that start would keep the files."""
        self._is_stopping = True
        if self._steps:
            self._take_turn()

    def _take_turn(self) -> None:
        # Set while running, too: a step may complete a `Later` whose callback adds steps.
        self._has_turn = True
        left, upper_ms = AT_ONCE, self._clock.monotonic_ms() + TURN_MS
        while self._steps and (self._is_stopping or (left and self._clock.monotonic_ms() <= upper_ms)):
            left -= 1
            self._steps.popleft()()
        self._has_turn = bool(self._steps)
        if self._steps:
            self._clock.call_soon(self._take_turn)

    def _open_in_turn(self, topic: Topic, index: int) -> None:
        indexes = self._to_open.get(topic.id)
        if indexes is None:
            indexes = self._to_open[topic.id] = set()
        indexes.add(index)
        self._steps.append(partial(self._open_first, topic.id, index))

    def _open_first(self, topic_id: UUID, index: int) -> None:
        indexes = self._to_open[topic_id]
        indexes.discard(index)
        if not indexes:
            del self._to_open[topic_id]
        topic = self._image.topics_by_id.get(topic_id)
        # It may have been deleted, or moved away, while it waited for its turn.
        if topic is not None and self._is_ours(topic, index) and not self._is_stopping:
            self._open(topic, index)

    def _is_ours(self, topic: Topic, index: int) -> bool:
        """Whether the metadata assigns this node a replica."""
        return self._node_id in topic.partitions[index].replicas

    def _has_moved_away(self, name: TopicPartition, log: PartitionLog) -> bool:
        """Whether the topic still exists and a completed reassignment has moved this replica to other nodes."""
        topic = self._image.topics_by_id.get(log.topic_id)
        return (
            topic is not None
            and topic.name == name.topic
            and name.partition < len(topic.partitions)
            and not self._is_ours(topic, name.partition)
        )

    def _settings_of(self, topic: str) -> tuple[Settings, LogLimits]:
        """Effective settings of the topic, computed once for all its partitions."""
        known = self._settings_by_topic.get(topic)
        if known is None:
            layers = self._layers()
            settings = layers.topic_settings(self._image.topic_config(topic))
            known = self._settings_by_topic[topic] = (settings, log_limits(settings, layers.settings()))
        return known

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of a topic, even if the image has already dropped it."""
        return self._names.get(topic_id)

    def _open(self, topic: Topic, index: int, wait_ms: int = REOPEN_MS) -> None:
        there = self._partitions.by_id(topic.id, index)
        if there is not None:
            self.give_role(there)
            return
        name = TopicPartition(topic.name, index)
        settings, limits = self._settings_of(topic.name)
        if self._store.is_leaving(name):
            self._clock.call_later(LEAVING_MS, lambda: self._reopen(topic.id, index, wait_ms))
            return
        try:
            if self._is_to_begin_anew(topic, index):
                self._set_aside(name, "damaged replica set aside, copying it from the leader")
            elif name in self._store.damaged and self._store.owner_of(name) not in (NO_TOPIC_ID, topic.id):
                self._set_aside(name)
            log = self._store.get(name)
            if log is not None and _is_foreign(log, topic):
                # Left by a deleted topic of this name whose removal has not run yet.
                self._set_aside(name)
                log = None
            if log is None:
                self._check_not_missing(topic, name)
                log = self._store.create(name, topic.id, limits)
            log.set_topic_id(topic.id)
            log.limits = limits
        except (OSError, Refused) as error:
            again_ms = None if name in self._store.damaged else wait_ms
            self._journal("partition cannot be opened", partition=name.folder, error=str(error), again_ms=again_ms)
            if again_ms is not None:
                # Nothing is damaged: the disk is full or unreachable, which may pass.
                next_ms = min(2 * wait_ms, REOPEN_MS_MAX)
                self._clock.call_later(wait_ms, lambda: self._reopen(topic.id, index, next_ms))
            return
        noted = self._high_watermark(topic.id, index)
        partition = Partition(name, topic.id, log, self._context, high_watermark=noted)
        partition.configure(settings)
        self._partitions.add(partition)
        self.give_role(partition)

    def _check_not_missing(self, topic: Topic, name: TopicPartition) -> None:
        """Refuse to recreate an empty log for a replica counted as in sync: others would truncate to nothing."""
        known = topic.partitions[name.partition]
        if (
            name in self._store.missing
            and len(known.replicas) > 1
            and self._node_id in (known.leader, *known.isr, *known.elr, *known.last_known)
        ):
            if name not in self._missed:
                self._missed.add(name)
                self._report_lost_records()
            raise Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "its folder is missing; it is copied from the leader after it leaves the ISR",
            )

    def _reopen(self, topic_id: UUID, index: int, wait_ms: int) -> None:
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None or self._is_stopping or self._partitions.by_id(topic_id, index) is not None:
            return
        if not self._is_ours(topic, index):
            return
        name = TopicPartition(topic.name, index)
        if name in self._store.failed:
            for note in self._store.reopen(name, self._settings_of(topic.name)[1], self._clock.wall_ms()):
                self._journal("recovery", note=note)
            log = self._store.get(name)
            if log is not None and _is_foreign(log, topic):
                self._set_aside(name)
        self._open(topic, index, wait_ms)
        if self._partitions.by_id(topic_id, index) is not None:
            self._journal("partition is open now", partition=name.folder)
            self._on_late()

    def _set_aside(self, name: TopicPartition, event: str = "a folder belongs to no topic and was set aside") -> None:
        self._journal(event, folder=self._store.set_aside(name))

    def _follow_change(self, record: PartitionChangeRecord) -> None:
        topic = self._image.topics_by_id.get(record.topic_id)
        if topic is None:
            # Deleted by a later record of the same decision.
            return
        index = record.partition_id
        name = TopicPartition(topic.name, index)
        partition = self._partitions.by_id(topic.id, index)
        is_ours = self._is_ours(topic, index)
        if partition is not None and is_ours:
            self.give_role(partition)
        elif partition is not None:
            self._discard(partition)
            self._steps.append(partial(self._take_away, partition.name))
        elif not is_ours and (name in self._store.failed or self._store.get(name) is not None):
            # The log could not be opened, or is still queued to be.
            self._steps.append(partial(self._take_away, name))
        elif is_ours and not self.is_to_open(topic.id, index) and self._can_be_opened(topic, index):
            self._open_in_turn(topic, index)

    def give_role(self, partition: Partition) -> None:
        """Make the partition lead, follow or wait, as the current metadata says."""
        topic = self._image.topics_by_id.get(partition.topic_id)
        if topic is None or self._partitions.by_id(topic.id, partition.name.partition) is not partition:
            return
        if self._fetchers.is_cutting(partition):
            # A leader must know its log end offset; this is called again when the truncation ends.
            return
        if partition in self._to_configure:
            # Settings first, as in `on_records`.
            self._configure(partition)
        before = partition.follower
        partition.apply_metadata(view_of(topic.partitions[partition.name.partition]))
        if partition.follower is None:
            self._fetchers.forget(partition)
        elif partition.follower is not before:
            self._fetchers.follow(partition)

    def _can_be_opened(self, topic: Topic, index: int) -> bool:
        """Whether to try now: a log that failed to open has its own retry, or none if it is damaged."""
        return TopicPartition(topic.name, index) not in self._store.failed or self._is_to_begin_anew(topic, index)

    def _is_to_begin_anew(self, topic: Topic, index: int) -> bool:
        """Whether the replica is damaged and can be copied from its leader."""
        return TopicPartition(topic.name, index) in self._store.damaged and self._can_be_copied(topic, index)

    def _can_be_copied(self, topic: Topic, index: int) -> bool:
        """Whether another node leads, and this replica is not in the ISR, the ELR or the last known."""
        known = topic.partitions[index]
        return known.leader not in (NO_LEADER, self._node_id) and self._node_id not in (
            *known.isr,
            *known.elr,
            *known.last_known,
        )

    def copy_anew(self, partition: Partition) -> bool:
        """Discard a replica whose log has failed and copy it from the leader; False if others count on it."""
        topic = self._image.topics_by_id.get(partition.topic_id)
        if topic is None or self._is_stopping or self._fetchers.is_cutting(partition):
            return True
        name = partition.name
        if not self._can_be_copied(topic, name.partition):
            return False
        self._discard(partition)
        try:
            self._remove_later(self._store.delete(name))
        except OSError as error:
            # The next start opens the files left.
            self._journal("a failed replica cannot be removed", partition=name.folder, error=str(error))
            return True
        self._journal("copying a failed replica from its leader", partition=name.folder)
        self._open_in_turn(topic, name.partition)
        if not self._has_turn:
            self._take_turn()
        return True

    def _discard(self, partition: Partition) -> None:
        self._fetchers.forget(partition)
        self._partitions.remove(partition)

    def _delete(self, record: RemoveTopicRecord) -> None:
        name = self._names.pop(record.topic_id, None)
        doomed = [failed for failed in self._store.failed if failed.topic == name]
        # Logs from before this start that have not been opened yet.
        waiting = [TopicPartition(name or "", index) for index in sorted(self._to_open.get(record.topic_id, ()))]
        doomed += [each for each in waiting if self._store.get(each) is not None]
        self._steps.extend(partial(self._take_away, each) for each in doomed)
        is_waiting = bool(self._to_retire)
        for partition in self._partitions.of_topic(record.topic_id):
            self._partitions.unlist(partition)
            self._to_retire[partition] = None
            self._steps.append(partial(self._retire_and_take_away, partition))
        if not is_waiting:
            self._retire_some()

    def _retire_some(self) -> None:
        """End requests pending on deleted partitions, before their folders are removed, and in batches."""
        for partition in list(islice(self._to_retire, RETIRED_AT_ONCE)):
            self._retire(partition)
        if self._to_retire:
            self._clock.call_soon(self._retire_some)

    def _retire(self, partition: Partition) -> None:
        if partition in self._to_retire:
            del self._to_retire[partition]
            self._fetchers.forget(partition)
            partition.end_role()

    def _retire_and_take_away(self, partition: Partition) -> None:
        self._retire(partition)
        self._take_away(partition.name)

    def _take_away(self, name: TopicPartition) -> None:
        try:
            self._remove_later(self._store.delete(name))
        except OSError as error:
            # The replica is no longer ours: the next start sets the files aside, or tries again.
            self._journal("files of a deleted replica cannot be removed", partition=name.folder, error=str(error))

    def _configure_all(self, records: Sequence[Record]) -> None:
        configured: dict[str, None] = {}
        for record in records:
            if isinstance(record, ConfigRecord):
                is_topic = record.resource_type == ResourceType.TOPIC
                configured.update(dict.fromkeys([record.resource_name] if is_topic else self._image.topics))
        for topic_name in configured:
            topic = self._image.topics.get(topic_name)
            if topic is not None:
                self._to_configure |= dict.fromkeys(self._partitions.of_topic(topic.id))
        if self._to_configure:
            self._configure_some()
            # A setting of the whole cluster changes all partitions, which is too much for one turn.
            self._steps.extend([self._configure_some] * ceil(len(self._to_configure) / CONFIGURED_AT_ONCE))

    def _configure_some(self) -> None:
        for partition in list(islice(self._to_configure, CONFIGURED_AT_ONCE)):
            self._configure(partition)

    def _configure(self, partition: Partition) -> None:
        self._to_configure.pop(partition, None)
        if self._partitions.by_id(partition.topic_id, partition.name.partition) is partition:
            settings, limits = self._settings_of(partition.name.topic)
            partition.log.limits = limits
            partition.configure(settings)


def _is_foreign(log: PartitionLog, owner: Topic) -> bool:
    """Whether the log may hold the records of another topic."""
    return log.topic_id != owner.id and (log.topic_id != NO_TOPIC_ID or log.end_offset > 0)
