"""WriteTxnMarkers (27), versions 1-2: write the outcome of a transaction to partitions; for coordinators and repairs.

1 flexible · 2 the version of the transaction protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.base.later import Later, done, gather
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import OF_NODES, Need, Rights, Screened, demand_node
from millpond.broker.coordination.coordination import Producer
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext


def handle(
    data: DataContext, coordination: CoordinationContext, call: Call, request: m.WriteTxnMarkersRequest
) -> Outcome:
    wanted = [
        (marker, TopicPartition(topic.name, index))
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    ]
    if call.is_from_node and not coordination.markers.is_latest(call.client_id or "", call.connection.number):
        codes = [done(ErrorCode.NOT_COORDINATOR) for _ in wanted]
    else:
        codes = [_write(data, coordination, marker, partition) for marker, partition in wanted]

    return gather(codes).map(lambda codes: _answer(request, iter(codes)))


def _answer(request: m.WriteTxnMarkersRequest, in_order: Iterator[ErrorCode]) -> m.WriteTxnMarkersResponse:
    return m.WriteTxnMarkersResponse(
        markers=[
            m.WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=next(in_order)
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _write(
    data: DataContext,
    coordination: CoordinationContext,
    marker: m.WriteTxnMarkersRequest.WritableTxnMarker,
    name: TopicPartition,
) -> Later[ErrorCode]:
    partition = data.partitions.get(*name)
    if partition is None:
        return done(data.absence(*name))
    written = coordination.markers.write(
        partition,
        Producer(marker.producer_id, marker.producer_epoch),
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version,
    )
    return written.map(lambda _: ErrorCode.NONE).recover(Refused, lambda refused: refused.code)


def _screen(metadata: MetadataContext, call: Call, request: m.WriteTxnMarkersRequest) -> Screened | None:
    """Coordinators write markers, and admins who repair a hanging transaction."""
    if call.may(*NEEDS[0], CLUSTER_NAME) or demand_node(call):
        return None
    return Screened(None, _answer(request, repeat(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)))


NEEDS = (Need(Operation.ALTER, AclResource.CLUSTER), OF_NODES)

API = Api(
    key=27,
    name="WriteTxnMarkers",
    versions=(1, 2),
    handle=handle,
    pieces=(way("markers.topics.partition_indexes", "markers.topics.partitions", items=100),),
    rights=Rights(NEEDS, _screen),
)
