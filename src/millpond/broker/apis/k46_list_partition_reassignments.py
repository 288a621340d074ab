"""ListPartitionReassignments (46), version 0: the partitions that are moving to other replicas.

`replicas` has all replicas during the move: those that stay, those being added and those being removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.reassignments import Moving, decide_list_reassignments
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext

Response = m.ListPartitionReassignmentsResponse


def handle(metadata: MetadataContext, call: Call, request: m.ListPartitionReassignmentsRequest) -> Outcome:
    wanted = (
        None
        if request.topics is None
        else [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    )
    listed = metadata.controller.submit(lambda image: decide_list_reassignments(image, wanted))
    return listed.map(_answer).recover(
        Refused, lambda refused: Response(error_code=refused.code, error_message=refused.message, topics=[])
    )


def _answer(moving: tuple[Moving, ...]) -> m.ListPartitionReassignmentsResponse:
    topics: dict[str, m.ListPartitionReassignmentsResponse.OngoingTopicReassignment] = {}
    for each in moving:
        topic = topics.setdefault(each.topic, Response.OngoingTopicReassignment(name=each.topic, partitions=[]))
        topic.partitions.append(
            Response.OngoingPartitionReassignment(
                partition_index=each.index,
                replicas=list(each.partition.replicas),
                adding_replicas=list(each.partition.adding_replicas),
                removing_replicas=list(each.partition.removing_replicas),
            )
        )
    return Response(topics=list(topics.values()))


API = Api(
    key=46,
    name="ListPartitionReassignments",
    versions=(0, 0),
    handle=handle,
    lists="topics",
    at_controller=True,
    pieces=(way("topics.partition_indexes", "topics.partitions"),),
    rights=on_cluster(Operation.DESCRIBE),
)
