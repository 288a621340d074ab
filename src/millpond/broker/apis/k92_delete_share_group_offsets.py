"""DeleteShareGroupOffsets (92), version 0: delete the delivery state of topics of a share group without members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, both
from millpond.broker.coordinator_calls.group_calls import refuse_group
from millpond.broker.coordinator_calls.group_rights import on_group
from millpond.broker.coordinator_calls.share_groups import delete_state, state_of
from millpond.broker.coordinator_calls.share_rights import on_topics
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext

Topic = m.DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic


def handle(
    metadata: MetadataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.DeleteShareGroupOffsetsRequest,
) -> Outcome:
    try:
        known = state_of(coordination, request.group_id)
    except Refused as refused:
        return refuse_group(call, request, refused)
    responses, deleted = [], []
    for name in dict.fromkeys(topic.topic_name for topic in request.topics):
        topic = metadata.image.topics.get(name)
        result = Topic(topic_name=name)
        if topic is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            result.topic_id = topic.id
            if topic.id in known:
                deleted.append(topic.id)
            else:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_message = "the group has no delivery state of this topic"
        responses.append(result)
    done = delete_state(coordination, request.group_id, deleted)
    answered = done.map(lambda _: m.DeleteShareGroupOffsetsResponse(responses=responses))
    return answered.recover(Refused, lambda refused: refuse_group(call, request, refused))


def _refuse(topic: m.DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic, code: ErrorCode) -> Topic:
    return Topic(topic_name=topic.topic_name, error_code=code, error_message=NOT_AUTHORISED)


API = Api(
    key=92,
    name="DeleteShareGroupOffsets",
    versions=(0, 0),
    handle=handle,
    lists="topics",
    pieces=(way("topics", "responses", once=lambda topic: topic.topic_name, one_by_one=True),),
    rights=both(on_group(Operation.DELETE), on_topics(_refuse)),
)
