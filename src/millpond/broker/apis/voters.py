"""Who votes on the metadata (KIP-853), a line each. The cluster chooses its voters by itself; these have a say.

AddRaftVoter (80), let a node vote that has caught up: 1 may be answered before it is committed, which it never is.
RemoveRaftVoter (81), take a node's vote away.
UpdateRaftVoter (82), a voter has another address; not told to clients. Ours never send it: the controller sees it by
itself, from how the node registers, and goes by that where the two differ.

Where the voters are still those of a list that every node was told, the log names them first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import for_nodes, on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.quorum.voters import KRAFT_VERSION, voter_of
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.image import NO_DIRECTORY
from millpond.quorum.voters import Voter, VoterEndPoint
from millpond.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from millpond.broker.context import MetadataContext

    Change = Callable[[tuple[Voter, ...]], tuple[Voter, ...]]


def add(metadata: MetadataContext, call: Call, request: m.AddRaftVoterRequest) -> Outcome:
    def change(voters: tuple[Voter, ...]) -> tuple[Voter, ...]:
        if any(each.node_id == request.voter_id for each in voters):
            raise Refused(ErrorCode.DUPLICATE_VOTER, f"node {request.voter_id} has a vote already")
        joined = voter_of(metadata.image, request.voter_id)
        if joined is None:
            text = f"node {request.voter_id} is not one of the cluster: start it with `millpond up --join HOST:PORT`"
            raise Refused(ErrorCode.INVALID_REQUEST, text)
        _check_directory(joined, request.voter_directory_id)
        return (*voters, joined)

    return _changed(metadata, request.cluster_id, change).map(
        lambda verdict: m.AddRaftVoterResponse(error_code=verdict.code, error_message=verdict.message)
    )


def remove(metadata: MetadataContext, call: Call, request: m.RemoveRaftVoterRequest) -> Outcome:
    def change(voters: tuple[Voter, ...]) -> tuple[Voter, ...]:
        known = next((each for each in voters if each.node_id == request.voter_id), None)
        if known is None:
            raise Refused(ErrorCode.VOTER_NOT_FOUND, f"node {request.voter_id} has no vote")
        _check_directory(known, request.voter_directory_id)
        return tuple(each for each in voters if each is not known)

    return _changed(metadata, request.cluster_id, change).map(
        lambda verdict: m.RemoveRaftVoterResponse(error_code=verdict.code, error_message=verdict.message)
    )


def update(metadata: MetadataContext, call: Call, request: m.UpdateRaftVoterRequest) -> Outcome:
    epoch, told = metadata.controller.leader_epoch, request.current_leader_epoch

    def change(voters: tuple[Voter, ...]) -> tuple[Voter, ...]:
        if told != epoch:
            text = f"the epoch of the quorum is {epoch}, not {told}"
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH if told < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH, text)
        known = next((each for each in voters if each.node_id == request.voter_id), None)
        if known is None or known.directory_id != request.voter_directory_id:
            raise Refused(ErrorCode.VOTER_NOT_FOUND, f"node {request.voter_id} has no vote with that data folder")
        if not request.listeners or not all(each.host and each.port for each in request.listeners):
            raise Refused(ErrorCode.INVALID_REQUEST, "a voter has an address")
        levels = request.k_raft_version_feature
        if not levels.min_supported_version <= KRAFT_VERSION <= levels.max_supported_version:
            raise Refused(ErrorCode.INVALID_REQUEST, f"a voter supports kraft.version {KRAFT_VERSION}")
        end_points = (VoterEndPoint(each.name, each.host, each.port) for each in request.listeners)
        moved = known._replace(end_points=tuple(end_points))
        registered = voter_of(metadata.image, request.voter_id)
        if registered is not None and registered != moved:
            raise Refused(ErrorCode.INVALID_REQUEST, f"node {request.voter_id} has registered at another address")
        return tuple(moved if each is known else each for each in voters)

    return _changed(metadata, request.cluster_id, change).map(
        lambda verdict: m.UpdateRaftVoterResponse(
            error_code=verdict.code,
            current_leader=m.UpdateRaftVoterResponse.CurrentLeader(
                leader_id=metadata.controller.leader_id, leader_epoch=metadata.controller.leader_epoch
            ),
        )
    )


def _check_directory(voter: Voter, directory_id: UUID) -> None:
    if directory_id not in (NO_DIRECTORY, voter.directory_id):
        text = f"the data folder of node {voter.node_id} is another one than that: its disk was replaced"
        raise Refused(ErrorCode.INVALID_VOTER_KEY, text)


def _changed(metadata: MetadataContext, cluster_id: str | None, change: Change) -> Later[Verdict]:
    if cluster_id and cluster_id != metadata.image.cluster_id:
        return done(Verdict(ErrorCode.INCONSISTENT_CLUSTER_ID, "this is another cluster"))
    controller = metadata.controller

    def named(verdict: Verdict) -> Later[Verdict]:
        return controller.change_voters(change(controller.voters())) if verdict.ok else done(verdict)

    if not controller.is_active:
        return done(Verdict(ErrorCode.NOT_CONTROLLER, "this node is not the active controller"))
    try:
        # First of all: what is refused must not have had the log name the voters, which is for good.
        objection = controller.host.objection(change(controller.voters()))
    except Refused as refused:
        return done(Verdict.of(refused))
    if objection is not None:
        return done(Verdict(ErrorCode.INVALID_REQUEST, objection))
    first = done(OK) if controller.kraft_version else controller.raise_kraft_version()
    return first.chain(named).recover(Refused, Verdict.of)


APIS = (
    Api(
        80, "AddRaftVoter", (0, 1), add, at_controller=True, forward=relay_change, rights=on_cluster(Operation.ALTER)
    ),
    Api(
        81,
        "RemoveRaftVoter",
        (0, 0),
        remove,
        at_controller=True,
        forward=relay_change,
        rights=on_cluster(Operation.ALTER),
    ),
    Api(
        82,
        "UpdateRaftVoter",
        (0, 0),
        update,
        at_controller=True,
        is_advertised=False,
        rights=for_nodes(),
    ),
)
