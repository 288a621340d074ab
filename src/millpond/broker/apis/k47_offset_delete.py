"""OffsetDelete (47), version 0: deletes the offsets of topics that the group no longer reads."""

from __future__ import annotations

from typing import Final

from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import both
from millpond.broker.coordinator_calls.group_calls import handle_for_group
from millpond.broker.coordinator_calls.group_rights import on_group, on_topics
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

DELETED_AT_ONCE: Final = 500
"""This many offsets of one request are deleted as one batch, which takes 5 to 10 ms of the loop."""

API = Api(
    key=47,
    name="OffsetDelete",
    versions=(0, 0),
    handle=handle_for_group,
    lists="topics",
    at_once=DELETED_AT_ONCE,
    pieces=(way("topics.partitions", "topics.partitions", items=DELETED_AT_ONCE, one_by_one=True),),
    rights=both(
        on_group(Operation.DELETE),
        on_topics(
            m.OffsetDeleteResponse.OffsetDeleteResponseTopic, m.OffsetDeleteResponse.OffsetDeleteResponsePartition
        ),
    ),
)
