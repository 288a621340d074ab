"""InitializeShareGroupState (83), version 0: begin the delivery state of share partitions; from group coordinators.

State that exists in the same state epoch is left alone; a higher state epoch begins it again.
"""

from __future__ import annotations

from millpond.broker.coordinator_calls.share_calls import ONLY_NODES, handle_change
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way

API = Api(
    key=83,
    name="InitializeShareGroupState",
    versions=(0, 0),
    handle=handle_change,
    pieces=(way("topics.partitions", "results.partitions", one_by_one=True),),
    rights=ONLY_NODES,
)
