"""EndQuorumEpoch (54), versions 0-1: the leader of the metadata quorum resigns.

Sent by nodes only. 1 flexible, the preferred candidates with their directories; the first of them starts an election
at once.
"""

from __future__ import annotations

from millpond.broker.administration.quorum_calls import ask_quorum
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.serving.api import Api

API = Api(key=54, name="EndQuorumEpoch", versions=(0, 1), handle=ask_quorum, is_advertised=False, rights=for_nodes())
