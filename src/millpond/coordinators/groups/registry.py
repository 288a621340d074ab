"""All groups of a shard and their offsets, built from the log's records.

A group that only stores offsets here is an empty classic one without a protocol. A group changes its kind when the
records of one kind end and those of the other begin.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, cast

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.classic import ClassicGroup
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.consumer.records import TYPES as CONSUMER_KEY_VERSIONS
from millpond.coordinators.groups.consumer.records import decode_record as decode_consumer_record
from millpond.coordinators.groups.group import GroupStep, Shared
from millpond.coordinators.groups.offsets import Committed, Offsets
from millpond.coordinators.groups.rebalance import wake
from millpond.coordinators.groups.records import (
    DELETED_TOPIC_KEY_VERSION,
    GROUP_KEY_VERSION,
    OFFSET_KEY_VERSIONS,
    OffsetKey,
    decode_deleted_topic,
    decode_group_key,
    decode_group_value,
    decode_offset_key,
    decode_offset_value,
    key_version,
)
from millpond.coordinators.groups.share.group import ShareGroup
from millpond.coordinators.groups.share.records import TYPES as SHARE_KEY_VERSIONS
from millpond.coordinators.groups.share.records import decode_record as decode_share_record
from millpond.coordinators.shard import Effects
from millpond.wire import messages as m

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup


class HasGroupId(Protocol):
    """The common field of the keys of consumer and share group records."""

    group_id: str


class Registry:
    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.groups: dict[str, AnyGroup] = {}
        self.offsets = Offsets(shared.memory, shared.image)
        self.at_ms = 0
        """The coordinator time of the current step, or of the records being loaded."""
        self.last_offset = -1
        """The offset of the last replayed record."""
        self.is_loaded = False

    # Records.

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        self.last_offset = offset
        version = key_version(key)
        if version in OFFSET_KEY_VERSIONS:
            self._replay_offset(offset, decode_offset_key(key), value)
        elif version == GROUP_KEY_VERSION:
            self._replay_classic(decode_group_key(key), value)
        elif version in CONSUMER_KEY_VERSIONS:
            self._replay_consumer(*decode_consumer_record(key, value))
        elif version in SHARE_KEY_VERSIONS:
            self._replay_share(*decode_share_record(key, value))
        elif version == DELETED_TOPIC_KEY_VERSION:
            self.offsets.replay_deleted(*decode_deleted_topic(key, value))
        # Kinds of newer versions are skipped.

    def replay_transactional(
        self, producer_id: int, epoch: int, offset: int, key: bytes, value: bytes | None
    ) -> None:
        """An offset that a transaction will commit. Transactions contain nothing else."""
        self.last_offset = offset
        if key_version(key) not in OFFSET_KEY_VERSIONS or value is None:
            return
        offset_key = decode_offset_key(key)
        committed = Committed.from_record(decode_offset_value(value), offset, self.at_ms)
        self.created(offset_key.group_id)
        self.offsets.replay_pending(producer_id, epoch, offset_key, committed)

    def replay_marker(self, producer_id: int, epoch: int, committed: bool) -> None:
        for group_id in {key.group_id: None for key in self.offsets.replay_marker(producer_id, epoch, committed)}:
            self.remove_if_unused(self.groups[group_id])

    def _replay_offset(self, offset: int, key: OffsetKey, value: bytes | None) -> None:
        if value is not None:
            self.created(key.group_id)
            self.offsets.replay(key, Committed.from_record(decode_offset_value(value), offset, self.at_ms))
            return
        self.offsets.replay(key, None)
        if key.group_id in self.groups:
            self.remove_if_unused(self.groups[key.group_id])

    def _replay_classic(self, group_id: str, value: bytes | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                self._drop(group_id)
                self._keep_for_offsets(group_id)
            return
        had_members = isinstance(group, ClassicGroup) and bool(group.members)
        if not isinstance(group, ClassicGroup):
            group = self.new_classic(group_id)
        group.replay(decode_group_value(value), self.at_ms)
        if group.members and not had_members and self.is_loaded:
            # A live consumer group was turned back.
            step = GroupStep(self.shared, self.at_ms)
            wake(step, group)
            assert step.effects == Effects(), "no member can have joined yet"

    def _replay_consumer(self, key: m.Message, value: m.Message | None) -> None:
        group_id = cast(HasGroupId, key).group_id
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.new_consumer(group_id)
            self.put(group)
        group.replay(key, value, self.at_ms)
        if value is None and not group.exists:
            self._drop(group_id)
            self._keep_for_offsets(group_id)

    def _replay_share(self, key: m.Message, value: m.Message | None) -> None:
        group_id = cast(HasGroupId, key).group_id
        group = self.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            if value is None:
                return
            group = self.new_share(group_id)
            self.put(group)
        group.replay(key, value, self.at_ms)
        if value is None and not group.exists:
            self._drop(group_id)
            self._keep_for_offsets(group_id)

    def _keep_for_offsets(self, group_id: str) -> None:
        if self.offsets.has_any(group_id):
            self.created(group_id)

    # Groups.

    def with_members(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        """A group that may have members of the classic protocol. Without a group there is no such member either."""
        if not group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is None or isinstance(group, ShareGroup):
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def known(self, group_id: str) -> AnyGroup:
        if group_id not in self.groups:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, "the group does not exist")
        return self.groups[group_id]

    def created(self, group_id: str) -> AnyGroup:
        """The group, created if necessary: one that only stores offsets has no members and no protocol."""
        return self.groups.get(group_id) or self.new_classic(group_id)

    def new_classic(self, group_id: str) -> ClassicGroup:
        group = self.prepared_classic(group_id)
        self.put(group)
        return group

    def prepared_classic(self, group_id: str) -> ClassicGroup:
        """A group that is not registered yet: see `put`."""
        group = ClassicGroup(group_id, self.shared.settings.history_length, self.shared.memory)
        self._publish(group)
        return group

    def new_consumer(self, group_id: str) -> ConsumerGroup:
        """A group that is not registered yet: see `put`."""
        shared = self.shared
        group = ConsumerGroup(
            group_id,
            shared.patterns,
            shared.settings.consumer,
            shared.entropy,
            shared.settings.history_length,
            shared.memory,
        )
        self._publish(group)
        return group

    def new_share(self, group_id: str) -> ShareGroup:
        """A group that is not registered yet: see `put`."""
        shared = self.shared
        return ShareGroup(group_id, lambda: shared.image, shared.settings.share, shared.memory)

    def put(self, group: AnyGroup) -> None:
        """Register it in place of the one of this name."""
        before = self.groups.get(group.group_id)
        if before is not None:
            before.release()
        self.groups[group.group_id] = group

    def _drop(self, group_id: str) -> None:
        self.groups.pop(group_id).release()

    def _publish(self, group: AnyGroup) -> None:
        group.history.publish = lambda over: self.shared.finished.append((group.group_id, over))

    def remove_if_unused(self, group: AnyGroup) -> None:
        """Remove a group that neither the log nor a client knows: it only costs memory."""
        if (
            isinstance(group, ClassicGroup)
            and group.is_empty
            and not group.is_written
            and not group.pending
            and not self.offsets.has_any(group.group_id)
        ):
            self._drop(group.group_id)
