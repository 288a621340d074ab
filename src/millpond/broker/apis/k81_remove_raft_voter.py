"""RemoveRaftVoter (81), version 0: takes a node's vote away (KIP-853).

The cluster chooses its voters by itself; this overrides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.broker.administration.quorum_calls import change_voters, check_directory
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.quorum.voters import Voter
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext


def handle(metadata: MetadataContext, call: Call, request: m.RemoveRaftVoterRequest) -> Outcome:
    def change(voters: tuple[Voter, ...]) -> tuple[Voter, ...]:
        removed = next((each for each in voters if each.node_id == request.voter_id), None)
        if removed is None:
            raise Refused(ErrorCode.VOTER_NOT_FOUND, f"node {request.voter_id} has no vote")
        check_directory(removed, request.voter_directory_id)
        return tuple(each for each in voters if each is not removed)

    return change_voters(metadata, request.cluster_id, change).map(
        lambda verdict: m.RemoveRaftVoterResponse(error_code=verdict.code, error_message=verdict.message)
    )


API = Api(
    key=81,
    name="RemoveRaftVoter",
    versions=(0, 0),
    handle=handle,
    at_controller=True,
    forward=relay_change,
    rights=on_cluster(Operation.ALTER),
)
