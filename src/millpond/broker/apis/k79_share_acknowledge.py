"""ShareAcknowledge (79), versions 1-2: accept, release, reject or renew records of a share group (KIP-932).

2 renewals, acquisition lock timeout.
It continues the session that a ShareFetch opened, and with epoch -1 ends it. The response comes once the
acknowledgements have been written: the accepted records are then never delivered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.fetch.consumer_fetch import AT_ONCE_MAX
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.share_requests.share_call import RIGHTS, ShareCall, by_topic
from millpond.broker.shares.acknowledgements import Codes, acknowledged_in
from millpond.broker.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext

ITEMS_MAX: Final = 30_000
"""A member may acknowledge record by record."""


def handle(
    node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: m.ShareAcknowledgeRequest
) -> Outcome:
    share_call = ShareCall(node, metadata, data, call, request)
    try:
        share_call.check()
        if request.share_session_epoch == INITIAL_EPOCH:
            raise Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "only a ShareFetch opens a share session")
        session = share_call.session()
    except Refused as refusal:
        return m.ShareAcknowledgeResponse(
            error_code=refusal.code,
            error_message=str(refusal) or None,
            acquisition_lock_timeout_ms=share_call.lock_duration_ms,
        )
    if request.share_session_epoch != FINAL_EPOCH:
        session.advance()

    def answer(codes: Codes) -> m.ShareAcknowledgeResponse:
        if request.share_session_epoch == FINAL_EPOCH:
            data.shares().sessions.end(session, were_delivered=False)
        partitions = {
            key: m.ShareAcknowledgeResponse.PartitionData(
                partition_index=key[1],
                error_code=code,
                current_leader=share_call.leader_hint(m.ShareAcknowledgeResponse.LeaderIdAndEpoch, key, code),
            )
            for key, code in codes.items()
        }
        return m.ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=share_call.lock_duration_ms,
            responses=by_topic(m.ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse, partitions),
            node_endpoints=share_call.node_endpoints(m.ShareAcknowledgeResponse.NodeEndpoint),
        )

    return share_call.acknowledge(session, acknowledged_in(request.topics)).map(answer)


def _has_many_partitions(response: m.ShareAcknowledgeResponse) -> bool:
    return sum(len(topic.partitions) for topic in response.responses) > AT_ONCE_MAX


API = Api(
    key=79,
    name="ShareAcknowledge",
    versions=(1, 2),
    handle=handle,
    lists="topics",
    waits=True,
    is_large=_has_many_partitions,
    whole_max=ITEMS_MAX,
    rights=RIGHTS,
)
