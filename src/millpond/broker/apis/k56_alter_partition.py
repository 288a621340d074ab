"""AlterPartition (56), versions 2-3: a leader asks the controller to change the ISR.

3 each member has the broker epoch that it fetched with. Not advertised: for brokers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, gather
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.elections import SLICE, IsrReply, IsrRequest, decide_alter_partitions
from millpond.metadata.leadership import IsrChange
from millpond.metadata.records import RECOVERED, RECOVERING
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext

Topic = m.AlterPartitionResponse.TopicData
WITH_EPOCHS_FROM = 3


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.AlterPartitionRequest) -> Outcome:
    asked = [
        IsrRequest(topic.topic_id, each.partition_index, _change(call, request, each))
        for topic in request.topics
        for each in topic.partitions
    ]
    return _decide(node, metadata, request, asked).recover(
        Refused, lambda refused: m.AlterPartitionResponse(error_code=refused.code, topics=[])
    )


def _decide(
    node: NodeContext, metadata: MetadataContext, request: m.AlterPartitionRequest, asked: list[IsrRequest]
) -> Later[m.AlterPartitionResponse]:
    """Takes one slice per turn of the loop: a leader may ask for thousands of partitions at once."""
    decided: list[Later[tuple[IsrReply, ...] | ErrorCode]] = []
    answered: Later[m.AlterPartitionResponse] = Later()

    def step(first: int = 0) -> None:
        some = asked[first : first + SLICE]
        decided.append(
            metadata.controller.submit(
                lambda image: decide_alter_partitions(
                    image, node.layers, request.broker_id, request.broker_epoch, some
                )
            )
        )
        if first + SLICE < len(asked):
            node.clock.call_soon(lambda: step(first + SLICE))
        else:
            gather(decided).map(_answer).then(answered.finish, answered.fail)

    step()
    return answered


def _change(
    call: Call, request: m.AlterPartitionRequest, partition: m.AlterPartitionRequest.PartitionData
) -> IsrChange:
    if call.version >= WITH_EPOCHS_FROM:
        isr = tuple((each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs)
    else:
        isr = tuple((each, -1) for each in partition.new_isr)
    return IsrChange(
        request.broker_id,
        request.broker_epoch,
        partition.leader_epoch,
        partition.partition_epoch,
        isr,
        is_recovering=partition.leader_recovery_state == RECOVERING,
    )


def _answer(slices: list[tuple[IsrReply, ...] | ErrorCode]) -> m.AlterPartitionResponse:
    topics: dict[object, m.AlterPartitionResponse.TopicData] = {}
    for replies in slices:
        if isinstance(replies, ErrorCode):
            return m.AlterPartitionResponse(error_code=replies, topics=[])
        for reply in replies:
            topic = topics.setdefault(reply.topic_id, Topic(topic_id=reply.topic_id, partitions=[]))
            topic.partitions.append(_partition(reply))
    return m.AlterPartitionResponse(topics=list(topics.values()))


def _partition(reply: IsrReply) -> m.AlterPartitionResponse.PartitionData:
    data = m.AlterPartitionResponse.PartitionData(partition_index=reply.index, error_code=reply.code, isr=[])
    if reply.partition is not None:
        data.leader_id = reply.partition.leader
        data.leader_epoch = reply.partition.leader_epoch
        data.isr = list(reply.partition.isr)
        data.leader_recovery_state = RECOVERING if reply.partition.is_recovering else RECOVERED
        data.partition_epoch = reply.partition.partition_epoch
    return data


API = Api(
    key=56,
    name="AlterPartition",
    versions=(2, 3),
    handle=handle,
    lists="topics",
    is_advertised=False,
    at_controller=True,
    pieces=(way("topics.partitions", "topics.partitions"),),
    rights=for_nodes(),
)
