"""OffsetCommit (8), versions 2-10: write down how far a group has read.

5 no retention time · 6 leader epoch · 7 static members · 8 flexible · 9 member epochs of the new protocol · 10 topic
ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.OffsetCommitRequest) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


API = Api(key=8, name="OffsetCommit", versions=(2, 10), handle=handle, lists="topics")
