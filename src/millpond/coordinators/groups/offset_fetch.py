"""OffsetFetch: the committed offsets of groups.

Versions: from 2 on no topics means all of them, and a group may have an error; 5 adds the leader epoch; from 7 on a
client may require stable offsets; from 8 on one request names several groups; 9 checks the member of a consumer
group; 10 names topics by id.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, cast
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.coordinators.groups.group import Group
from millpond.coordinators.groups.offsets import ByPartition, Committed, Offsets
from millpond.coordinators.groups.records import OffsetKey
from millpond.metadata.image import Image
from millpond.wire.messages import OffsetFetchRequest, OffsetFetchResponse

GROUP_ERROR_FROM = 2
SEVERAL_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10

NOT_COMMITTED = -1

BUILT_AT_ONCE: Final = 500
"""Responses with more offsets than this are built in steps of this many."""

AskedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
AnsweredGroup = OffsetFetchResponse.OffsetFetchResponseGroup
AnsweredTopic = OffsetFetchResponse.OffsetFetchResponseTopics | OffsetFetchResponse.OffsetFetchResponseTopic
AnsweredPartition = (
    OffsetFetchResponse.OffsetFetchResponsePartitions | OffsetFetchResponse.OffsetFetchResponsePartition
)


class OffsetReader:
    """Answers for one group at a time."""

    def __init__(self, image: Image, offsets: Offsets, *, version: int, require_stable: bool) -> None:
        self._image = image
        self._offsets = offsets
        self._by_id = version >= TOPIC_IDS_FROM
        # In requests for one group the same fields have other names.
        self._has_groups = version >= SEVERAL_GROUPS_FROM
        self._partition_kind: type[AnsweredPartition] = (
            OffsetFetchResponse.OffsetFetchResponsePartitions
            if self._has_groups
            else OffsetFetchResponse.OffsetFetchResponsePartition
        )
        self._require_stable = require_stable

    def read(self, group: Group | None, request: AskedGroup) -> AnsweredGroup:
        if group is not None:
            try:
                group.check_fetch(request.member_id, request.member_epoch)
            except Refused as refused:
                return AnsweredGroup(group_id=request.group_id, error_code=refused.code)
        if request.topics is not None:
            topics: list[AnsweredTopic] | AllOffsets = self._chosen(request)
        elif self._offsets.count_of_group(request.group_id) > BUILT_AT_ONCE:
            topics = AllOffsets(self, request.group_id)
        else:
            topics = self._everything(request.group_id)
        return AnsweredGroup(group_id=request.group_id, topics=cast("Any", topics))

    def snapshot(self, group_id: str) -> tuple[dict[str, ByPartition], list[OffsetKey]]:
        """The offsets of a group, and those that an open transaction would change, if that matters."""
        committed = {topic: dict(each) for topic, each in self._offsets.by_group.get(group_id, {}).items()}
        return committed, self._offsets.pending_of_group(group_id) if self._require_stable else []

    def answered(self, key: OffsetKey, committed: Committed | None, *, unstable: bool) -> AnsweredPartition:
        if unstable:
            return self._unanswered(key.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if committed is None or self._offsets.is_deleted(key.topic, committed):
            return self._unanswered(key.partition, ErrorCode.NONE)
        return self._partition_kind(
            partition_index=key.partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )

    def is_returned(self, key: OffsetKey, committed: Committed) -> bool:
        return not self._offsets.is_deleted(key.topic, committed)

    def _chosen(self, request: AskedGroup) -> list[AnsweredTopic]:
        topics = []
        for topic in request.topics or ():
            name = topic.name
            if self._by_id:
                existing = self._image.topics_by_id.get(topic.topic_id)
                name = existing.name if existing else ""
            partitions = [
                self._partition(OffsetKey(request.group_id, name, number))
                if name or not self._by_id
                else self._unanswered(number, ErrorCode.UNKNOWN_TOPIC_ID)
                for number in topic.partition_indexes
            ]
            topics.append(self._topic(name, topic.topic_id if self._has_groups else NO_TOPIC_ID, partitions))
        return topics

    def _everything(self, group_id: str) -> list[AnsweredTopic]:
        by_topic: dict[str, list[AnsweredPartition]] = {}
        # An offset that exists only in a transaction cannot be read yet, but is unstable already.
        unstable = self._offsets.pending_of_group(group_id) if self._require_stable else []
        committed = (
            key for key, each in self._offsets.of_group(group_id) if not self._offsets.is_deleted(key.topic, each)
        )
        keys = dict.fromkeys((*committed, *unstable))
        for key in keys:
            by_topic.setdefault(key.topic, []).append(self._partition(key))
        return self.named(by_topic)

    def named(self, by_topic: dict[str, list[AnsweredPartition]]) -> list[AnsweredTopic]:
        return [
            self._topic(name, self._id_of(name), partitions)
            for name, partitions in by_topic.items()
            # A topic without an id is gone; its offsets are about to be.
            if not self._by_id or name in self._image.topics
        ]

    def _topic(self, name: str, topic_id: UUID, partitions: list[Any]) -> AnsweredTopic:
        if self._has_groups:
            return OffsetFetchResponse.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions)
        return OffsetFetchResponse.OffsetFetchResponseTopic(name=name, partitions=partitions)

    def _unanswered(self, partition: int, code: ErrorCode) -> AnsweredPartition:
        return self._partition_kind(
            partition_index=partition, committed_offset=NOT_COMMITTED, metadata="", error_code=code
        )

    def _id_of(self, name: str) -> UUID:
        topic = self._image.topics.get(name)
        return topic.id if topic else NO_TOPIC_ID

    def _partition(self, key: OffsetKey) -> AnsweredPartition:
        unstable = self._require_stable and self._offsets.is_pending(key)
        return self.answered(key, self._offsets.get(key), unstable=unstable)


class AllOffsets:
    """All offsets of a very large group at one moment, in place of the topics of a response."""

    def __init__(self, reader: OffsetReader, group_id: str) -> None:
        self._reader = reader
        self._group_id = group_id
        self._committed, self._unstable = reader.snapshot(group_id)

    def topics_in_steps(self) -> Generator[None, None, list[AnsweredTopic]]:
        """The topics; yields where others should have a turn."""
        reader, unstable = self._reader, dict.fromkeys(self._unstable)
        by_topic: dict[str, list[AnsweredPartition]] = {}
        built = 0
        for topic, partitions in self._committed.items():
            answered = []
            for partition, committed in partitions.items():
                built += 1
                if built % BUILT_AT_ONCE == 0:
                    yield
                key = OffsetKey(self._group_id, topic, partition)
                is_unstable = key in unstable
                if is_unstable or reader.is_returned(key, committed):
                    unstable.pop(key, None)
                    answered.append(reader.answered(key, committed, unstable=is_unstable))
            if answered:
                by_topic[topic] = answered
        for key in unstable:
            built += 1
            if built % BUILT_AT_ONCE == 0:
                yield
            by_topic.setdefault(key.topic, []).append(reader.answered(key, None, unstable=True))
        return reader.named(by_topic)


def asked_groups(body: OffsetFetchRequest, version: int) -> list[AskedGroup]:
    """The groups that a request of any version names."""
    if version >= SEVERAL_GROUPS_FROM:
        return body.groups
    # These topics have no id, which is not used below `TOPIC_IDS_FROM`.
    return [AskedGroup(group_id=body.group_id, topics=cast("Any", body.topics))]


def fetch_reply(groups: list[AnsweredGroup], version: int) -> OffsetFetchResponse:
    """The results in the form of the version."""
    if version >= SEVERAL_GROUPS_FROM:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(error_code=group.error_code, topics=cast("Any", group.topics))
