"""OffsetCommit, TxnOffsetCommit and OffsetDelete.

Versions of OffsetCommit: 2 to 4 may set a retention time; 6 adds the leader epoch, 7 static members; 9 distinguishes
a missing group from a stale generation; 10 names topics by id. TxnOffsetCommit does both from version 6 on.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.group import Group, GroupStep
from millpond.coordinators.groups.offsets import Offsets
from millpond.coordinators.groups.records import OffsetKey, offset_record, plain_offset_record
from millpond.coordinators.shard import CoordinatorRecord
from millpond.metadata.image import Image
from millpond.wire.kernel import ShortCommit
from millpond.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitValue,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

TOPIC_IDS_FROM = 10
GROUP_ID_NOT_FOUND_FROM = 9
TRANSACTIONAL_TOPIC_IDS_FROM = 6
EXACT_GROUP_ERRORS_FROM = 6
"""From this version of TxnOffsetCommit on, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH are not reported as
ILLEGAL_GENERATION (KIP-1319)."""

TIME_MS_MAX = (1 << 63) - 1


def commit(step: GroupStep, offsets: Offsets, body: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
    """The records of valid offsets, and a result for each. The group has accepted already."""
    topics = []
    records: list[CoordinatorRecord] = []
    metadata_by_key: dict[OffsetKey, str] = {}
    for topic in body.topics:
        name, code = _named(step.shared.image, topic.name, topic.topic_id, by_id=version >= TOPIC_IDS_FROM)
        partitions = []
        for partition in topic.partitions:
            partition_code = code or _fault(step, name, partition.partition_index, partition.committed_metadata)
            if partition_code is ErrorCode.NONE:
                value = OffsetCommitValue(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp=step.wall_ms,
                    expire_timestamp=_expiry_ms(step, body.retention_time_ms),
                    topic_id=step.shared.image.topics[name].id,
                )
                key = OffsetKey(body.group_id, name, partition.partition_index)
                # If a partition is repeated, only the last one is stored: its memory counts once.
                metadata_by_key[key] = value.metadata
                records.append(offset_record(key, value))
            partitions.append(
                OffsetCommitResponse.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=partition_code
                )
            )
        topics.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    step.shared.memory.check(offsets.growth_of_all(metadata_by_key))
    step.record(*records)
    return OffsetCommitResponse(topics=topics)


def commit_one(step: GroupStep, offsets: Offsets, request: ShortCommit) -> CoordinatorRecord | None:
    """The record of a request's single offset, by topic name; None if it is not possible."""
    metadata = request.metadata or ""
    if _fault(step, request.topic, request.partition, metadata) is not ErrorCode.NONE:
        return None
    key = OffsetKey(request.group_id, request.topic, request.partition)
    if not step.shared.memory.has_room(offsets.growth_bytes(key, metadata)):
        return None
    return plain_offset_record(
        *key, request.offset, request.leader_epoch, metadata, step.wall_ms, step.shared.image.topics[request.topic].id
    )


def refused_commit(body: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def commit_in_transaction(
    step: GroupStep, offsets: Offsets, body: TxnOffsetCommitRequest, version: int
) -> TxnOffsetCommitResponse:
    """Records for a batch of the producer's transaction; they take effect with its marker."""
    under_way = offsets.pending.get(body.producer_id)
    if under_way is not None and body.producer_epoch < under_way.epoch:
        raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
    records: list[CoordinatorRecord] = []
    metadata_by_key: dict[OffsetKey, str] = {}
    by_id = version >= TRANSACTIONAL_TOPIC_IDS_FROM

    def decide(
        topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
        partition: TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition,
    ) -> ErrorCode:
        name, code = _named(step.shared.image, topic.name, topic.topic_id, by_id=by_id)
        code = code or _fault(step, name, partition.partition_index, partition.committed_metadata)
        if code is ErrorCode.NONE:
            value = OffsetCommitValue(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
                commit_timestamp=step.wall_ms,
                topic_id=step.shared.image.topics[name].id,
            )
            key = OffsetKey(body.group_id, name, partition.partition_index)
            metadata_by_key[key] = value.metadata
            records.append(offset_record(key, value))
        return code

    response = _transactional_reply(body, decide)
    step.shared.memory.check(
        sum(
            offsets.pending_growth_bytes(body.producer_id, key, metadata) for key, metadata in metadata_by_key.items()
        )
    )
    step.record(*records)
    return response


def refused_in_transaction(body: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return _transactional_reply(body, lambda _topic, _partition: code)


def delete_offsets(
    step: GroupStep, group: Group, offsets: Offsets, body: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Remove offsets of topics without subscribers in the group."""
    group.check_offset_delete()
    read = group.subscribed_among(topic.name for topic in body.topics)
    topics = []
    for topic in body.topics:
        is_read = topic.name in read
        partitions = []
        for partition in topic.partitions:
            key = OffsetKey(body.group_id, topic.name, partition.partition_index)
            if not is_read and (offsets.get(key) or offsets.is_pending(key)):
                step.record(offset_record(key, None))
            partitions.append(
                OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE,
                )
            )
        topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return OffsetDeleteResponse(topics=topics)


def _transactional_reply(
    body: TxnOffsetCommitRequest,
    decide: Callable[
        [
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition,
        ],
        ErrorCode,
    ],
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=decide(topic, partition)
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def _named(image: Image, name: str, topic_id: UUID, *, by_id: bool) -> tuple[str, ErrorCode]:
    """The name of the requested topic."""
    if not by_id:
        return name, ErrorCode.NONE
    topic = image.topics_by_id.get(topic_id)
    return (topic.name, ErrorCode.NONE) if topic else ("", ErrorCode.UNKNOWN_TOPIC_ID)


def _expiry_ms(step: GroupStep, retention_ms: int) -> int:
    """When the offset may expire; -1 leaves that to the coordinator. The record's maximum means never."""
    return -1 if retention_ms < 0 else min(step.wall_ms + retention_ms, TIME_MS_MAX)


def _fault(step: GroupStep, topic: str, partition: int, metadata: str | None) -> ErrorCode:
    if step.shared.image.partition(topic, partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # Counted in characters, as in Kafka: the limit must not depend on the broker.
    if metadata is not None and len(metadata) > step.settings.offset_metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE
