"""WriteShareGroupState (85), versions 0-1: changes to the delivery state of share partitions; from their leaders.

1 the number of finished records, which the coordinator counts itself.
"""

from __future__ import annotations

from millpond.broker.coordinator_calls.share_calls import ONLY_NODES, handle_change
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way

API = Api(
    key=85,
    name="WriteShareGroupState",
    versions=(0, 1),
    handle=handle_change,
    pieces=(way("topics.partitions", "results.partitions", one_by_one=True),),
    rights=ONLY_NODES,
)
