"""DeleteRecords (21), versions 0-2: move the start of partitions forward, giving up what lies before it.

2 flexible. The offset -1 means all that there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.api import Api
from millpond.broker.call import Call
from millpond.broker.replies import Outcome
from millpond.metadata.image import COORDINATOR_TOPICS
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services

TO_THE_END = -1


def handle(broker: Services, call: Call, request: m.DeleteRecordsRequest) -> Outcome:
    response = m.DeleteRecordsResponse(
        topics=[
            m.DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete_before(broker, topic.name, wanted.partition_index, wanted.offset)
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    moved = [result for topic in response.topics for result in topic.partitions if not result.error_code]
    if not moved:
        return response

    def fail(_: OSError) -> m.DeleteRecordsResponse:
        for result in moved:
            result.low_watermark, result.error_code = -1, ErrorCode.KAFKA_STORAGE_ERROR
        return response

    # Also where retention had moved the start already: that alone is not on disk yet.
    return broker.checkpoints.write().map(lambda _: response).recover(OSError, fail)


def _delete_before(
    broker: Services, topic: str, index: int, offset: int
) -> m.DeleteRecordsResponse.DeleteRecordsPartitionResult:
    partition = broker.partitions.get(topic, index)
    low_watermark, error = -1, ErrorCode.NONE
    if partition is None:
        error = broker.absence(topic, index)
    else:
        try:
            partition.check_leads()
            if topic in COORDINATOR_TOPICS:
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
            if not partition.log.limits.cleanup_delete:
                raise Refused(ErrorCode.POLICY_VIOLATION)
            before = partition.committed_offset if offset == TO_THE_END else offset
            if not 0 <= before <= partition.committed_offset:
                raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
            partition.log.delete_before(before)
            low_watermark = partition.log.start_offset
        except Refused as refusal:
            error = refusal.code
    return m.DeleteRecordsResponse.DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=low_watermark, error_code=error
    )


API = Api(key=21, name="DeleteRecords", versions=(0, 2), handle=handle, lists="topics")
