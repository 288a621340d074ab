"""ElectLeaders (43), versions 0-2: elect the preferred replica or, if no replica in sync is left, one that may lack
records.

1 the kind of election · 2 flexible. No partitions means all; the response then lists those that changed. An unclean
election first asks the live replicas which of them has the longest log (KIP-966).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done, gather
from millpond.base.rights import Operation
from millpond.broker.administration.unclean_recovery import ask_log_ends
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.loop.steps import Steps, in_slices, run_steps
from millpond.broker.peers.controller_channel import forward_ms
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.decision import Decision
from millpond.metadata.elections import SLICE, Elected, ElectionType, decide_elect_leaders
from millpond.metadata.unclean_recovery import LogEnds, partitions_in
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.metadata.image import Image

ERROR_FOR_ALL_FROM = 1
Result = m.ElectLeadersResponse.ReplicaElectionResult


def handle(
    node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: m.ElectLeadersRequest
) -> Outcome:
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        return _refuse(call, request, ErrorCode.INVALID_REQUEST, "unknown election type")
    wanted = None
    if request.topic_partitions is not None:
        wanted = [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    log_ends: Later[LogEnds] = done({})
    if kind is ElectionType.UNCLEAN and metadata.controller.is_active:
        # Less than the timeout of a forwarded request.
        log_ends = ask_log_ends(node, metadata, data, wanted, forward_ms(request) // 2)
    elected = log_ends.chain(lambda ends: _elect(node, metadata, kind, wanted, ends))
    return elected.map(_answer).recover(
        Refused, lambda refused: _refuse(call, request, refused.code, refused.message)
    )


def _elect(
    node: NodeContext,
    metadata: MetadataContext,
    kind: ElectionType,
    wanted: list[tuple[str, int]] | None,
    log_ends: LogEnds,
) -> Later[tuple[Elected, ...]]:
    """Slice by slice: an unclean election of a partition takes the loop some 20 µs, and a batch must not grow."""
    names = partitions_in(metadata.image) if wanted is None else dict.fromkeys(wanted)

    def decide(some: list[tuple[str, int]], image: Image) -> Decision[tuple[Elected, ...]]:
        return decide_elect_leaders(image, node.layers, kind, some, log_ends, changes_only=wanted is None)

    def steps() -> Steps[tuple[Elected, ...]]:
        asked: list[Later[tuple[Elected, ...]]] = []
        for some in in_slices(list(names), SLICE):
            if asked:
                yield None
            asked.append(metadata.controller.submit(partial(decide, some)))
        elected = yield gather(asked)
        return tuple(each for some in elected for each in some)

    return run_steps(node.clock, steps())


def _answer(elected: tuple[Elected, ...]) -> m.ElectLeadersResponse:
    by_topic: dict[str, list[Elected]] = {}
    for each in elected:
        by_topic.setdefault(each.topic, []).append(each)
    return m.ElectLeadersResponse(
        replica_election_results=[
            Result(
                topic=topic,
                partition_result=[
                    m.ElectLeadersResponse.PartitionResult(
                        partition_id=each.index, error_code=each.verdict.code, error_message=each.verdict.message
                    )
                    for each in partitions
                ],
            )
            for topic, partitions in by_topic.items()
        ]
    )


def _refuse(
    call: Call, request: m.ElectLeadersRequest, code: ErrorCode, why: str | None = NOT_AUTHORISED
) -> m.ElectLeadersResponse:
    """Version 0 has no top-level error: each partition gets it."""
    return m.ElectLeadersResponse(
        error_code=code if call.version >= ERROR_FOR_ALL_FROM else ErrorCode.NONE,
        replica_election_results=[
            Result(
                topic=topic.topic,
                partition_result=[
                    m.ElectLeadersResponse.PartitionResult(partition_id=index, error_code=code, error_message=why)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


API = Api(
    key=43,
    name="ElectLeaders",
    versions=(0, 2),
    handle=handle,
    lists="topic_partitions",
    at_controller=True,
    forward=relay_change,
    pieces=(way("topic_partitions.partitions", "replica_election_results.partition_result"),),
    rights=on_cluster(Operation.ALTER, _refuse),
)
