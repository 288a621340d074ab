"""Shared by the APIs that read and write the state of share partitions at their coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, for_nodes
from millpond.broker.coordination.share_requests import ask_share_coordinators, refuse_all
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext


def handle_for_nodes(coordination: CoordinationContext, call: Call, request: Any) -> Outcome:
    return ask_share_coordinators(coordination.shares, request, call.version, call.client_id or "")


def handle_change(coordination: CoordinationContext, call: Call, request: Any) -> Outcome:
    """As `handle_for_nodes`, unless the node has opened a newer connection since: then it has given this request up,
    and repeated it, and what has changed since would be undone."""
    if not call.is_own and not coordination.share_state.is_latest(call.client_id or "", call.connection.number):
        return refuse_all(request, Refused(ErrorCode.NOT_COORDINATOR, "the sender has repeated this request since"))
    return handle_for_nodes(coordination, call, request)


def _refuse(call: Call, request: Any, code: ErrorCode) -> Any:
    return refuse_all(request, Refused(code, NOT_AUTHORISED))


ONLY_NODES = for_nodes(refuse=_refuse)
