"""DeleteShareGroupState (86), version 0: delete the delivery state of share partitions; from group coordinators.

Where there is no state, nothing is to be done.
"""

from __future__ import annotations

from millpond.broker.coordinator_calls.share_calls import ONLY_NODES, handle_change
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way

API = Api(
    key=86,
    name="DeleteShareGroupState",
    versions=(0, 0),
    handle=handle_change,
    pieces=(way("topics.partitions", "results.partitions", one_by_one=True),),
    rights=ONLY_NODES,
)
