"""ReadShareGroupState (84), version 0: the delivery state of share partitions; from their leaders.

The leader epoch of the reader fences the leaders before it.
"""

from __future__ import annotations

from millpond.broker.coordinator_calls.share_calls import ONLY_NODES, handle_for_nodes
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way

API = Api(
    key=84,
    name="ReadShareGroupState",
    versions=(0, 0),
    handle=handle_for_nodes,
    pieces=(way("topics.partitions", "results.partitions", one_by_one=True),),
    rights=ONLY_NODES,
)
