"""BeginQuorumEpoch (53), versions 0-1: the new leader of the metadata quorum asks a voter to fetch from it.

Sent by nodes only. 1 flexible, the receiver's id and directory.
"""

from __future__ import annotations

from millpond.broker.administration.quorum_calls import ask_quorum
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.serving.api import Api

API = Api(
    key=53, name="BeginQuorumEpoch", versions=(0, 1), handle=ask_quorum, is_advertised=False, rights=for_nodes()
)
