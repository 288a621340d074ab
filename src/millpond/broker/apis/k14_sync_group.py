"""SyncGroup (14), versions 0-5: the leader hands in the assignment, every member gets its part.

1 throttle time · 3 static members · 4 flexible · 5 protocol type and name.
"""

from __future__ import annotations

from typing import Final

from millpond.broker.coordinator_calls.group_calls import handle_for_group
from millpond.broker.coordinator_calls.group_rights import WAIT_IN_GROUP
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

LARGE_BYTES: Final = 128 << 10
"""A worker encodes a larger assignment than this."""


def _is_large(response: m.SyncGroupResponse) -> bool:
    return len(response.assignment) > LARGE_BYTES


API = Api(
    key=14,
    name="SyncGroup",
    versions=(0, 5),
    handle=handle_for_group,
    waits=True,
    # One assignment per member, a microsecond each.
    whole_max=20_000,
    is_large=_is_large,
    rights=WAIT_IN_GROUP,
)
