"""OffsetFetch (9), versions 1-10: how far groups have read.

2 all topics, an error of the whole group · 5 leader epoch · 6 flexible · 7 only offsets that no transaction can still
change · 8 several groups at once · 9 member epochs of the new protocol · 10 topic ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.later import gather
from millpond.broker.coordination.group_calls import ask_group
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services

SEVERAL_GROUPS_FROM = 8


def handle(broker: Services, call: Call, request: m.OffsetFetchRequest) -> Outcome:
    if call.version < SEVERAL_GROUPS_FROM:
        return ask_group(broker, call, request.group_id, request)
    # Each group may live in another partition of the offsets topic.
    parts = [
        ask_group(
            broker,
            call,
            group.group_id,
            m.OffsetFetchRequest(groups=[group], require_stable=request.require_stable),
        )
        for group in request.groups
    ]
    return gather(parts).map(_join)


def _join(parts: list[m.OffsetFetchResponse]) -> m.OffsetFetchResponse:
    return m.OffsetFetchResponse(groups=[group for part in parts for group in part.groups])


API = Api(key=9, name="OffsetFetch", versions=(1, 10), handle=handle, lists="groups")
