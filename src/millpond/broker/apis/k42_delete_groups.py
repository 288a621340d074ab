"""DeleteGroups (42), versions 0-3: deletes empty groups and their offsets, and the delivery state of share groups.

2 flexible · 3 error messages.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.base.errors import Refused
from millpond.base.later import Later
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED
from millpond.broker.coordinator_calls.group_calls import ask_group, handler_for_groups, refuse_group
from millpond.broker.coordinator_calls.group_rights import on_groups
from millpond.broker.coordinator_calls.share_groups import delete_state, has_state
from millpond.broker.requests.call import Call
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext


def _delete(coordination: CoordinationContext, call: Call, group_id: str, body: m.Message) -> Later[Any]:
    """State first: if that fails, the group remains, and its deletion can be repeated."""
    if not has_state(coordination, group_id):
        return ask_group(coordination, call, group_id, body)
    deleted = delete_state(coordination, group_id)
    return deleted.chain(lambda _: ask_group(coordination, call, group_id, body)).recover(
        Refused, lambda refused: refuse_group(call, body, refused)
    )


API = Api(
    key=42,
    name="DeleteGroups",
    versions=(0, 3),
    handle=handler_for_groups("groups_names", "results", _delete),
    lists="groups_names",
    pieces=(way("groups_names", "results", once=str, one_by_one=True),),
    rights=on_groups(
        Operation.DELETE,
        "groups_names",
        "results",
        partial(m.DeleteGroupsResponse.DeletableGroupResult, error_message=NOT_AUTHORISED),
    ),
)
