"""DescribeGroups (15), versions 0-6: state, protocol and members of classic groups.

3 authorised operations · 4 static members · 5 flexible · 6 error messages, unknown groups are an error.
"""

from __future__ import annotations

from typing import Final

from millpond.base.rights import Operation
from millpond.broker.coordinator_calls.group_calls import handler_for_groups
from millpond.broker.coordinator_calls.group_rights import on_groups
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

LARGE_MEMBERS: Final = 100
LARGE_BYTES: Final = 128 << 10
"""A worker encodes a response with more members, or more bytes of their metadata and assignments, than this."""


def _is_large(response: m.DescribeGroupsResponse) -> bool:
    members = [member for group in response.groups for member in group.members]
    return (
        len(members) > LARGE_MEMBERS
        or sum(len(each.member_metadata) + len(each.member_assignment) for each in members) > LARGE_BYTES
    )


API = Api(
    key=15,
    name="DescribeGroups",
    versions=(0, 6),
    handle=handler_for_groups("groups", "groups"),
    lists="groups",
    pieces=(way("groups", "groups", once=str, one_by_one=True),),
    is_large=_is_large,
    rights=on_groups(Operation.DESCRIBE, "groups", "groups", m.DescribeGroupsResponse.DescribedGroup),
)
