"""What all APIs of groups share: one group's request goes to its coordinator, whatever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.base.errors import Refused
from millpond.broker.api import Call
from millpond.broker.asking import ask
from millpond.broker.coordination import Writing
from millpond.broker.wait import Wait
from millpond.coordinators.shard import Request
from millpond.wire.messages import Message

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def ask_group(broker: Broker, call: Call, group_id: str, body: Message, writing: Writing | None = None) -> Wait[Any]:
    return ask(broker.groups, call, group_id, body, refuse_group, writing)


def refuse_group(request: Request, refused: Refused) -> Message:
    # Not at the head of the file: it brings all of the coordinator with it, which a start can do without.
    from millpond.coordinators.groups.refusals import refusal

    return refusal(request, refused)
