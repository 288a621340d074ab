"""What all APIs of groups share: one group's request goes to its coordinator, whatever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import Refused
from millpond.base.later import Later
from millpond.broker.coordination.coordination import Writing
from millpond.broker.requests.call import Call
from millpond.coordinators.shard import Request
from millpond.wire.messages import JoinGroupRequest, Message, SyncGroupRequest

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext

GROUPS_AT_ONCE: Final = 100
"""So many coordinators are asked in one turn of the loop, by a request that names more of them."""


def ask_group(
    coordination: CoordinationContext, call: Call, group_id: str, body: Message, writing: Writing | None = None
) -> Later[Any]:
    reply = coordination.groups.ask(call, group_id, body, writing)
    kept = kept_of(body)
    return reply.recover(Refused, lambda refused: refuse_group(call, kept, refused))


def kept_of(body: Message) -> Message:
    """What a refusal has to know of a request. Joins and syncs wait for other members, and may say very much."""
    match body:
        case JoinGroupRequest():
            return JoinGroupRequest(member_id=body.member_id)
        case SyncGroupRequest():
            return SyncGroupRequest()
        case _:
            return body


def refuse_group(call: Call, body: Message, refused: Refused) -> Message:
    # Not at the head of the file: it brings all of the coordinator with it, which a start can do without.
    from millpond.coordinators.groups.refusals import refusal

    return refusal(Request(body, call.version, None), refused)
