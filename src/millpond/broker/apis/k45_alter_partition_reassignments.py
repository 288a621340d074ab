"""AlterPartitionReassignments (45), versions 0-1: move partitions to other replicas, or cancel a move.

1 whether the number of replicas may change. The response is sent when the move has begun; 46 reports its progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.later import Later, gather
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.elections import SLICE
from millpond.metadata.reassignments import Reassigned, Reassignment, decide_alter_reassignments
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext

Response = m.AlterPartitionReassignmentsResponse


def handle(
    node: NodeContext, metadata: MetadataContext, call: Call, request: m.AlterPartitionReassignmentsRequest
) -> Outcome:
    wanted = [
        Reassignment(topic.name, each.partition_index, None if each.replicas is None else tuple(each.replicas))
        for topic in request.topics
        for each in topic.partitions
    ]
    may_change_factor = request.allow_replication_factor_change
    return (
        _decide(node, metadata, wanted, may_change_factor)
        .map(lambda slices: _answer([each for some in slices for each in some], may_change_factor))
        .recover(
            Refused,
            lambda refused: Response(
                allow_replication_factor_change=may_change_factor,
                error_code=refused.code,
                error_message=refused.message,
                responses=[],
            ),
        )
    )


def _decide(
    node: NodeContext, metadata: MetadataContext, wanted: list[Reassignment], may_change_factor: bool
) -> Later[list[tuple[Reassigned, ...]]]:
    """Takes one slice per turn of the loop: a request may name all partitions of a cluster."""
    decided: list[Later[tuple[Reassigned, ...]]] = []
    answered: Later[list[tuple[Reassigned, ...]]] = Later()

    def step(first: int = 0) -> None:
        some = wanted[first : first + SLICE]
        decided.append(
            metadata.controller.submit(
                lambda image: decide_alter_reassignments(
                    image, node.layers, some, may_change_factor=may_change_factor
                )
            )
        )
        if first + SLICE < len(wanted):
            node.clock.call_soon(lambda: step(first + SLICE))
        else:
            gather(decided).then(answered.finish, answered.fail)

    step()
    return answered


def _answer(reassigned: list[Reassigned], may_change_factor: bool) -> m.AlterPartitionReassignmentsResponse:
    topics: dict[str, m.AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = {}
    for each in reassigned:
        topic = topics.setdefault(each.topic, Response.ReassignableTopicResponse(name=each.topic, partitions=[]))
        topic.partitions.append(
            Response.ReassignablePartitionResponse(
                partition_index=each.index, error_code=each.verdict.code, error_message=each.verdict.message
            )
        )
    return Response(allow_replication_factor_change=may_change_factor, responses=list(topics.values()))


API = Api(
    key=45,
    name="AlterPartitionReassignments",
    versions=(0, 1),
    handle=handle,
    lists="topics",
    at_controller=True,
    forward=relay_change,
    pieces=(way("topics.partitions", "responses.partitions"),),
    rights=on_cluster(Operation.ALTER),
)
