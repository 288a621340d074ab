"""DescribeQuorum (55), versions 0-2: who leads the metadata log and how far each voter is.

1 fetch times · 2 error messages, directories and the voters' addresses. One node is its own quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.broker.api import Api
from millpond.broker.call import Call
from millpond.broker.replies import Outcome
from millpond.metadata.topics import METADATA_TOPIC
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services

NODES_FROM = 2


def handle(broker: Services, call: Call, request: m.DescribeQuorumRequest) -> Outcome:
    response = m.DescribeQuorumResponse(
        topics=[
            m.DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[_partition(broker, topic.topic_name, each.partition_index) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    if call.version >= NODES_FROM:
        response.nodes = [
            m.DescribeQuorumResponse.Node(
                node_id=node_id,
                listeners=[m.DescribeQuorumResponse.Listener(name="PLAINTEXT", host=host, port=port)],
            )
            for node_id, host, port, _ in broker.addresses_for(call.connection)
        ]
    return response


def _partition(broker: Services, topic: str, index: int) -> m.DescribeQuorumResponse.PartitionData:
    if topic != METADATA_TOPIC or index != 0:
        return m.DescribeQuorumResponse.PartitionData(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only {METADATA_TOPIC}-0 has a quorum",
            current_voters=[],
            observers=[],
        )
    now_ms = broker.clock.wall_ms()
    return m.DescribeQuorumResponse.PartitionData(
        partition_index=index,
        leader_id=broker.node_id,
        leader_epoch=broker.controller.leader_epoch,
        high_watermark=broker.controller.committed_offset,
        current_voters=[
            m.DescribeQuorumResponse.ReplicaState(
                replica_id=broker.node_id,
                log_end_offset=broker.controller.log.end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
        observers=[],
    )


API = Api(key=55, name="DescribeQuorum", versions=(0, 2), handle=handle)
