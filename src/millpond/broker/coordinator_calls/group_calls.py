"""Requests to a group's coordinator, shared by all group APIs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millpond.base.errors import Refused
from millpond.base.later import Later
from millpond.base.rights import AclResource
from millpond.broker.authorization.authorized_operations import operations_on
from millpond.broker.coordination.coordination import Writing
from millpond.broker.loop.steps import ask_in_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.coordinators.shard import Request
from millpond.wire.messages import JoinGroupRequest, Message, SyncGroupRequest, response_class

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, NodeContext

GROUPS_AT_ONCE: Final = 100
"""How many coordinators a request asks per turn of the loop."""


def ask_group(
    coordination: CoordinationContext, call: Call, group_id: str, body: Message, writing: Writing | None = None
) -> Later[Any]:
    reply = coordination.groups.ask(call, group_id, body, writing)
    kept = kept_of(body)
    return reply.recover(Refused, lambda refused: refuse_group(call, kept, refused))


AskGroup: TypeAlias = Callable[["CoordinationContext", Call, str, Message], Later[Any]]


def handle_for_group(coordination: CoordinationContext, call: Call, request: Any) -> Outcome:
    """The handler of requests about the one group in their `group_id`."""
    return ask_group(coordination, call, request.group_id, request)


def handler_for_groups(
    names: str, results: str, ask: AskGroup = ask_group
) -> Callable[[NodeContext, CoordinationContext, Call, Any], Outcome]:
    """A handler that asks about each group in the request's `names` and joins the `results` of the responses."""

    def handle(node: NodeContext, coordination: CoordinationContext, call: Call, request: Any) -> Outcome:
        kind = type(request)
        groups = dict.fromkeys(getattr(request, names))
        questions = (partial(ask, coordination, call, each, kind(**{names: [each]})) for each in groups)
        answered = ask_in_steps(node.clock, questions, GROUPS_AT_ONCE)
        return answered.map(lambda responses: join(call, request, responses))

    def join(call: Call, request: Any, responses: list[Any]) -> Any:
        joined = [each for response in responses for each in getattr(response, results)]
        for each in joined:
            if getattr(request, "include_authorized_operations", False) and not each.error_code:
                each.authorized_operations = operations_on(call, AclResource.GROUP, each.group_id)
        return response_class(request.API_KEY)(**{results: joined})

    return handle


def kept_of(body: Message) -> Message:
    """The part of a request that its refusal needs. Joins and syncs wait for other members, and may be large."""
    match body:
        case JoinGroupRequest():
            return JoinGroupRequest(member_id=body.member_id)
        case SyncGroupRequest():
            return SyncGroupRequest()
        case _:
            return body


def refuse_group(call: Call, body: Message, refused: Refused) -> Message:
    # Imported late: it loads the whole coordinator, which would slow down the start.
    from millpond.coordinators.groups.refusals import refusal

    return refusal(Request(body, call.version, None), refused)
