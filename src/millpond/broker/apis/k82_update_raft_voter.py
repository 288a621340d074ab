"""UpdateRaftVoter (82), version 0: a voter has a new address (KIP-853). Not advertised to clients.

Our nodes never send it: the controller takes a voter's address from its registration, which also wins where the two
differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.administration.quorum_calls import change_voters
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.quorum.voters import KRAFT_VERSION, voter_of
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.quorum.voters import Voter, VoterEndPoint
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext


def handle(metadata: MetadataContext, call: Call, request: m.UpdateRaftVoterRequest) -> Outcome:
    epoch, request_epoch = metadata.controller.leader_epoch, request.current_leader_epoch

    def change(voters: tuple[Voter, ...]) -> tuple[Voter, ...]:
        if request_epoch != epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH if request_epoch < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise Refused(code, f"the epoch of the quorum is {epoch}, not {request_epoch}")
        voter = next((each for each in voters if each.node_id == request.voter_id), None)
        if voter is None or voter.directory_id != request.voter_directory_id:
            raise Refused(ErrorCode.VOTER_NOT_FOUND, f"node {request.voter_id} has no vote with that data folder")
        if not request.listeners or not all(each.host and each.port for each in request.listeners):
            raise Refused(ErrorCode.INVALID_REQUEST, "a voter needs an address")
        levels = request.k_raft_version_feature
        if not levels.min_supported_version <= KRAFT_VERSION <= levels.max_supported_version:
            raise Refused(ErrorCode.INVALID_REQUEST, f"a voter must support kraft.version {KRAFT_VERSION}")
        end_points = (VoterEndPoint(each.name, each.host, each.port) for each in request.listeners)
        moved = voter._replace(end_points=tuple(end_points))
        registered = voter_of(metadata.image, request.voter_id)
        if registered is not None and registered != moved:
            raise Refused(ErrorCode.INVALID_REQUEST, f"node {request.voter_id} has registered at another address")
        return tuple(moved if each is voter else each for each in voters)

    return change_voters(metadata, request.cluster_id, change).map(
        lambda verdict: m.UpdateRaftVoterResponse(
            error_code=verdict.code,
            current_leader=m.UpdateRaftVoterResponse.CurrentLeader(
                leader_id=metadata.controller.leader_id, leader_epoch=metadata.controller.leader_epoch
            ),
        )
    )


API = Api(
    key=82,
    name="UpdateRaftVoter",
    versions=(0, 0),
    handle=handle,
    at_controller=True,
    is_advertised=False,
    rights=for_nodes(),
)
