"""OffsetFetch: how far a group has read.

Versions: from 2 on no topics means all of them, and an error may be the whole group's; 5 brings the leader epoch;
from 7 on a reader may ask for stable offsets only; from 8 on one request asks for several groups; 9 checks the member
of a consumer group; 10 names topics by id.
"""

from __future__ import annotations

from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.coordinators.groups.group import Group
from millpond.coordinators.groups.offsets import Offsets
from millpond.coordinators.groups.records import OffsetKey
from millpond.metadata.image import Image
from millpond.wire.messages import OffsetFetchRequest, OffsetFetchResponse

GROUP_ERROR_FROM = 2
SEVERAL_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10

NOT_COMMITTED = -1

AskedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
AnsweredGroup = OffsetFetchResponse.OffsetFetchResponseGroup
AnsweredTopic = OffsetFetchResponse.OffsetFetchResponseTopics
AnsweredPartition = OffsetFetchResponse.OffsetFetchResponsePartitions


class OffsetReader:
    """Answers for one group at a time."""

    def __init__(self, image: Image, offsets: Offsets, *, version: int, require_stable: bool) -> None:
        self._image = image
        self._offsets = offsets
        self._by_id = version >= TOPIC_IDS_FROM
        self._require_stable = require_stable

    def read(self, group: Group | None, asked: AskedGroup) -> AnsweredGroup:
        if group is not None:
            try:
                group.check_fetch(asked.member_id, asked.member_epoch)
            except Refused as refused:
                return AnsweredGroup(group_id=asked.group_id, error_code=refused.code)
        topics = self._everything(asked.group_id) if asked.topics is None else self._chosen(asked)
        return AnsweredGroup(group_id=asked.group_id, topics=topics)

    def _chosen(self, asked: AskedGroup) -> list[AnsweredTopic]:
        topics = []
        for topic in asked.topics or ():
            name = topic.name
            if self._by_id:
                known = self._image.topics_by_id.get(topic.topic_id)
                name = known.name if known else ""
            partitions = [
                self._partition(OffsetKey(asked.group_id, name, number))
                if name or not self._by_id
                else _unanswered(number, ErrorCode.UNKNOWN_TOPIC_ID)
                for number in topic.partition_indexes
            ]
            topics.append(AnsweredTopic(name=name, topic_id=topic.topic_id, partitions=partitions))
        return topics

    def _everything(self, group_id: str) -> list[AnsweredTopic]:
        by_topic: dict[str, list[AnsweredPartition]] = {}
        # An offset that so far exists in a transaction only is not there to be read, but it is unstable already.
        unstable = self._offsets.pending_of_group(group_id) if self._require_stable else []
        keys = dict.fromkeys((*(key for key, _ in self._offsets.of_group(group_id)), *unstable))
        for key in keys:
            by_topic.setdefault(key.topic, []).append(self._partition(key))
        return [
            AnsweredTopic(name=name, topic_id=self._id_of(name), partitions=partitions)
            for name, partitions in by_topic.items()
            # A topic without an id is gone; its offsets are about to be.
            if not self._by_id or name in self._image.topics
        ]

    def _id_of(self, name: str) -> UUID:
        topic = self._image.topics.get(name)
        return topic.id if topic else NO_TOPIC_ID

    def _partition(self, key: OffsetKey) -> AnsweredPartition:
        if self._require_stable and self._offsets.is_pending(key):
            return _unanswered(key.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        committed = self._offsets.get(key)
        if committed is None:
            return _unanswered(key.partition, ErrorCode.NONE)
        return AnsweredPartition(
            partition_index=key.partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )


def asked_groups(body: OffsetFetchRequest, version: int) -> list[AskedGroup]:
    """The groups that a request of any version asks for."""
    if version >= SEVERAL_GROUPS_FROM:
        return body.groups
    topics = None
    if body.topics is not None:
        topics = [
            OffsetFetchRequest.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in body.topics
        ]
    return [AskedGroup(group_id=body.group_id, topics=topics)]


def fetch_reply(groups: list[AnsweredGroup], version: int) -> OffsetFetchResponse:
    """The answers in the shape of the version."""
    if version >= SEVERAL_GROUPS_FROM:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _unanswered(partition: int, code: ErrorCode) -> AnsweredPartition:
    return AnsweredPartition(partition_index=partition, committed_offset=NOT_COMMITTED, metadata="", error_code=code)
