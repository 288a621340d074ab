"""The APIs by which the voters keep the metadata, a line each. For the nodes alone: clients are not told of them.

Vote (52), may another node lead the metadata: 1 the receiver's own id and directory · 2 pre-vote: nothing is promised
yet.
BeginQuorumEpoch (53), another node leads the metadata; come and fetch: 1 flexible, the receiver's own id and
directory.
EndQuorumEpoch (54), the node that led the metadata leads no more: 1 flexible, candidates with their directories. The
first of them stands at once.
FetchSnapshot (59), the bytes of a snapshot of the metadata, from a position on: 1 the follower's directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext

    Question = m.VoteRequest | m.BeginQuorumEpochRequest | m.EndQuorumEpochRequest | m.FetchSnapshotRequest


def ask(metadata: MetadataContext, call: Call, request: Question) -> Outcome:
    connection = call.connection
    return metadata.controller.host.answer(request, connection.number, connection.link.listener)


APIS = (
    Api(52, "Vote", (0, 2), ask, is_advertised=False, rights=for_nodes()),
    Api(53, "BeginQuorumEpoch", (0, 1), ask, is_advertised=False, rights=for_nodes()),
    Api(54, "EndQuorumEpoch", (0, 1), ask, is_advertised=False, rights=for_nodes()),
    Api(59, "FetchSnapshot", (0, 1), ask, is_advertised=False, rights=for_nodes()),
)
