"""FetchSnapshot (59), versions 0-1: bytes of a metadata snapshot, from a position on. Sent by nodes only.

1 the follower's directory.
"""

from __future__ import annotations

from millpond.broker.administration.quorum_calls import ask_quorum
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.serving.api import Api

API = Api(key=59, name="FetchSnapshot", versions=(0, 1), handle=ask_quorum, is_advertised=False, rights=for_nodes())
