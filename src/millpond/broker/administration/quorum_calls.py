"""Requests to the metadata quorum: those of the voters themselves, and changes to the set of voters (KIP-853)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.image import NO_DIRECTORY
from millpond.quorum.voters import Voter

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext
    from millpond.broker.controller.controller import Controller

Change = Callable[[tuple[Voter, ...]], tuple[Voter, ...]]


def ask_quorum(metadata: MetadataContext, call: Call, request: Any) -> Outcome:
    connection = call.connection
    return metadata.controller.host.answer(request, connection.number, connection.link.listener)


def change_voters(metadata: MetadataContext, cluster_id: str | None, change: Change) -> Later[Verdict]:
    """Commits the set of voters that `change` returns; a `Refused` that it raises becomes the verdict.

    If the voters are still those of the static list in every node's settings, the log takes them over first.
    """
    if cluster_id and cluster_id != metadata.image.cluster_id:
        return done(Verdict(ErrorCode.INCONSISTENT_CLUSTER_ID, "this is another cluster"))
    controller = metadata.controller
    if not controller.is_active:
        return done(Verdict(ErrorCode.NOT_CONTROLLER, "this node is not the active controller"))
    try:
        # Before the log takes over the voters, which cannot be undone: a refused change must not cause that.
        objection = controller.host.objection(change(controller.voters()))
    except Refused as refused:
        return _confirmed(controller, Verdict.of(refused))
    if objection is not None:
        return _confirmed(controller, Verdict(ErrorCode.INVALID_REQUEST, objection))

    def commit(verdict: Verdict) -> Later[Verdict]:
        return controller.change_voters(change(controller.voters())) if verdict.ok else done(verdict)

    first = done(OK) if controller.kraft_version else controller.raise_kraft_version()
    return first.chain(commit).recover(Refused, Verdict.of)


def _confirmed(controller: Controller, verdict: Verdict) -> Later[Verdict]:
    """A refusal, once it is certain that no other controller has changed the voters."""
    return controller.confirmed(done(verdict)).recover(Refused, Verdict.of)


def check_directory(voter: Voter, directory_id: UUID) -> None:
    if directory_id not in (NO_DIRECTORY, voter.directory_id):
        text = f"node {voter.node_id} has another data folder than that: its disk was replaced"
        raise Refused(ErrorCode.INVALID_VOTER_KEY, text)
