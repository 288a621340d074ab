"""DeleteRecords (21), versions 0-2: advance the start offset of partitions, deleting the records before it.

2 flexible. The offset -1 means the high watermark. The response is sent once the live replicas have followed. The
timeout bounds only the wait for followers, as in Kafka: a request with a timeout of 0 is carried out, too. Internal
topics are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, gather
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import on_each
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.config.node import PRODUCE_WAIT_MAX_MS
from millpond.metadata.image import INTERNAL_TOPICS
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, NodeContext

TO_THE_END = -1

Topic = m.DeleteRecordsResponse.DeleteRecordsTopicResult
Result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(node: NodeContext, data: DataContext, call: Call, request: m.DeleteRecordsRequest) -> Outcome:
    moved: list[tuple[Result, Later[None]]] = []
    response = m.DeleteRecordsResponse(
        topics=[
            Topic(
                name=topic.name,
                partitions=[
                    _delete_before(data, topic.name, wanted.partition_index, wanted.offset, moved)
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    if not moved:
        return response

    def fail(_: OSError) -> None:
        for result, _followed in moved:
            _refuse(result, ErrorCode.KAFKA_STORAGE_ERROR)

    # Even if retention had advanced the start already: that alone is not on disk yet.
    written = data.checkpoints.write().recover(OSError, fail)
    all_followed = gather([followed for _, followed in moved])

    def time_out() -> None:
        for result, followed in moved:
            if not followed.ended:
                _refuse(result, ErrorCode.REQUEST_TIMED_OUT)
        all_followed.finish([])

    wait_ms = min(max(request.timeout_ms, 0), node.settings[PRODUCE_WAIT_MAX_MS])
    all_followed.expire_after(node.clock, wait_ms, time_out)
    # Answered only once it is on disk, whatever the timeout: a power cut could undo it until then.
    return gather([written, all_followed.map(lambda _: None)]).map(lambda _: response)


def _delete_before(
    data: DataContext, topic: str, index: int, offset: int, moved: list[tuple[Result, Later[None]]]
) -> Result:
    result = Result(partition_index=index, low_watermark=-1)
    partition = data.partitions.get(topic, index)
    if partition is None:
        result.error_code = data.absence(topic, index)
        return result
    try:
        partition.check_leads()
        if topic in INTERNAL_TOPICS:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not partition.log.limits.cleanup_delete:
            raise Refused(ErrorCode.POLICY_VIOLATION)
        before = partition.committed_offset if offset == TO_THE_END else offset
        if not 0 <= before <= partition.committed_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        followed = partition.delete_before(before)
        result.low_watermark = partition.log.start_offset
        moved.append((result, followed.recover(Refused, lambda refused: _refuse(result, refused.code))))
    except Refused as refusal:
        result.error_code = refusal.code
    return result


def _refuse(result: Result, code: ErrorCode) -> None:
    result.low_watermark, result.error_code = -1, code


def _refuse_topic(topic: m.DeleteRecordsRequest.DeleteRecordsTopic, code: ErrorCode) -> Topic:
    return Topic(
        name=topic.name,
        partitions=[
            Result(partition_index=each.partition_index, low_watermark=-1, error_code=code)
            for each in topic.partitions
        ],
    )


RIGHTS = on_each(
    Operation.DELETE,
    AclResource.TOPIC,
    of="topics",
    named=lambda topic: topic.name,
    refuse=_refuse_topic,
    into="topics",
)

API = Api(
    key=21,
    name="DeleteRecords",
    versions=(0, 2),
    handle=handle,
    lists="topics",
    pieces=(way("topics.partitions", "topics.partitions"),),
    rights=RIGHTS,
)
