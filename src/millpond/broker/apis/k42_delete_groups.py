"""DeleteGroups (42), versions 0-3: deletes empty groups and their offsets.

2 flexible · 3 error messages.
"""

from __future__ import annotations

from functools import partial

from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED
from millpond.broker.coordinator_calls.group_calls import handler_for_groups
from millpond.broker.coordinator_calls.group_rights import on_groups
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

API = Api(
    key=42,
    name="DeleteGroups",
    versions=(0, 3),
    handle=handler_for_groups("groups_names", "results"),
    lists="groups_names",
    pieces=(way("groups_names", "results", once=str, one_by_one=True),),
    rights=on_groups(
        Operation.DELETE,
        "groups_names",
        "results",
        partial(m.DeleteGroupsResponse.DeletableGroupResult, error_message=NOT_AUTHORISED),
    ),
)
