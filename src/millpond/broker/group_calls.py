"""What all APIs of groups share: one group's request goes to its coordinator, whatever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.broker.api import Call
from millpond.broker.asking import ask
from millpond.broker.coordination import Producer
from millpond.broker.wait import Wait
from millpond.coordinators.groups.refusals import refusal
from millpond.wire.messages import Message

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def ask_group(
    broker: Broker, call: Call, group_id: str, body: Message, producer: Producer | None = None
) -> Wait[Any]:
    return ask(broker.groups, call, group_id, body, refusal, producer)
