"""ReadShareGroupStateSummary (87), versions 0-1: epochs and start offsets of share partitions, for people.

1 the number of finished records. Nobody is fenced by it.
"""

from __future__ import annotations

from millpond.broker.coordinator_calls.share_calls import ONLY_NODES, handle_for_nodes
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way

API = Api(
    key=87,
    name="ReadShareGroupStateSummary",
    versions=(0, 1),
    handle=handle_for_nodes,
    pieces=(way("topics.partitions", "results.partitions", one_by_one=True),),
    rights=ONLY_NODES,
)
