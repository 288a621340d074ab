"""AlterShareGroupOffsets (91), version 0: where a share group without members continues to read.

What the group has finished from there on is forgotten, so all these records are delivered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, gather
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, both
from millpond.broker.coordinator_calls.group_calls import refuse_group
from millpond.broker.coordinator_calls.group_rights import on_group
from millpond.broker.coordinator_calls.share_groups import new_state_epoch, note_state
from millpond.broker.coordinator_calls.share_rights import on_topics
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.coordinators.shares.keys import SharePartition
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext
    from millpond.broker.coordination.share_state import StateSummary

Topic = m.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
Result = m.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition


def handle(
    metadata: MetadataContext, coordination: CoordinationContext, call: Call, request: m.AlterShareGroupOffsetsRequest
) -> Outcome:
    def alter(state_epoch: int) -> Later[m.AlterShareGroupOffsetsResponse]:
        return _alter(metadata, coordination, request, state_epoch)

    answered = new_state_epoch(coordination, request.group_id).chain(alter)
    return answered.recover(Refused, lambda refused: refuse_group(call, request, refused))


def _alter(
    metadata: MetadataContext,
    coordination: CoordinationContext,
    request: m.AlterShareGroupOffsetsRequest,
    state_epoch: int,
) -> Later[m.AlterShareGroupOffsetsResponse]:
    responses, asked, altered = [], list[Later[None]](), set[SharePartition]()
    for topic in request.topics:
        known = metadata.image.topics.get(topic.topic_name)
        response = Topic(topic_name=topic.topic_name, partitions=[])
        if known is not None:
            response.topic_id = known.id
        for each in topic.partitions:
            result = Result(partition_index=each.partition_index)
            response.partitions.append(result)
            if known is None or not 0 <= each.partition_index < len(known.partitions):
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            key = SharePartition(request.group_id, known.id, each.partition_index)
            if key in altered or each.start_offset < 0:
                result.error_code = ErrorCode.INVALID_REQUEST
                result.error_message = "the partition is named twice" if key in altered else "a negative offset"
                continue
            altered.add(key)
            asked.append(_alter_one(coordination, key, state_epoch, each.start_offset, result, altered))
        responses.append(response)

    def end(_: object) -> m.AlterShareGroupOffsetsResponse:
        # These members need not wait for it.
        note_state(coordination, request.group_id, altered)
        return m.AlterShareGroupOffsetsResponse(responses=responses)

    return gather(asked).map(end)


def _alter_one(
    coordination: CoordinationContext,
    key: SharePartition,
    state_epoch: int,
    start_offset: int,
    result: Result,
    altered: set[SharePartition],
) -> Later[None]:
    def refuse(refused: Refused) -> None:
        altered.discard(key)
        result.error_code, result.error_message = refused.code, refused.message

    def initialize(known: StateSummary) -> Later[None]:
        # A leader that has lost records has begun the state again, with an epoch that the group does not know.
        epoch = max(state_epoch, known.state_epoch + 1)
        return coordination.share_state.initialize(key, epoch, start_offset)

    return coordination.share_state.summary(key).chain(initialize).recover(Refused, refuse)


def _refuse(topic: m.AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic, code: ErrorCode) -> Topic:
    partitions = [
        Result(partition_index=each.partition_index, error_code=code, error_message=NOT_AUTHORISED)
        for each in topic.partitions
    ]
    return Topic(topic_name=topic.topic_name, partitions=partitions)


API = Api(
    key=91,
    name="AlterShareGroupOffsets",
    versions=(0, 0),
    handle=handle,
    lists="topics",
    pieces=(way("topics.partitions", "responses.partitions", one_by_one=True),),
    rights=both(on_group(Operation.READ), on_topics(_refuse)),
)
