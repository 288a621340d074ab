"""JoinGroup (11), versions 0-9: a consumer joins a group, or rejoins because of a rebalance.

1 rebalance timeout · 4 the first attempt only gets a member id · 5 static members · 6 flexible · 7 protocol type ·
8 a reason · 9 the leader can be asked to skip the assignment.
"""

from __future__ import annotations

from typing import Final

from millpond.broker.coordinator_calls.group_calls import handle_for_group
from millpond.broker.coordinator_calls.group_rights import WAIT_IN_GROUP
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

LARGE_MEMBERS: Final = 100
LARGE_BYTES: Final = 128 << 10
"""A worker encodes a response with more members, or more bytes of their metadata, than this."""


def _is_large(response: m.JoinGroupResponse) -> bool:
    members = response.members
    return len(members) > LARGE_MEMBERS or sum(len(each.metadata) for each in members) > LARGE_BYTES


API = Api(
    key=11,
    name="JoinGroup",
    versions=(0, 9),
    handle=handle_for_group,
    waits=True,
    is_large=_is_large,
    rights=WAIT_IN_GROUP,
)
