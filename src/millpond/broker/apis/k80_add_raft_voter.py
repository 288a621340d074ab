"""AddRaftVoter (80), versions 0-1: gives a vote to a node that has caught up (KIP-853).

The cluster chooses its voters by itself; this overrides it. 1 allows a response before the change is committed, which
this broker never sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.broker.administration.quorum_calls import change_voters, check_directory
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.quorum.voters import voter_of
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.quorum.voters import Voter
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext


def handle(metadata: MetadataContext, call: Call, request: m.AddRaftVoterRequest) -> Outcome:
    def change(voters: tuple[Voter, ...]) -> tuple[Voter, ...]:
        if any(each.node_id == request.voter_id for each in voters):
            raise Refused(ErrorCode.DUPLICATE_VOTER, f"node {request.voter_id} has a vote already")
        joined = voter_of(metadata.image, request.voter_id)
        if joined is None:
            text = f"node {request.voter_id} is not in the cluster: start it with `millpond up --join HOST:PORT`"
            raise Refused(ErrorCode.INVALID_REQUEST, text)
        check_directory(joined, request.voter_directory_id)
        return (*voters, joined)

    return change_voters(metadata, request.cluster_id, change).map(
        lambda verdict: m.AddRaftVoterResponse(error_code=verdict.code, error_message=verdict.message)
    )


API = Api(
    key=80,
    name="AddRaftVoter",
    versions=(0, 1),
    handle=handle,
    at_controller=True,
    forward=relay_change,
    rights=on_cluster(Operation.ALTER),
)
