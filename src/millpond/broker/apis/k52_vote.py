"""Vote (52), versions 0-2: a candidate asks to lead the metadata quorum. Sent by nodes only.

1 the receiver's id and directory · 2 pre-vote, which promises nothing.
"""

from __future__ import annotations

from millpond.broker.administration.quorum_calls import ask_quorum
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.serving.api import Api

API = Api(key=52, name="Vote", versions=(0, 2), handle=ask_quorum, is_advertised=False, rights=for_nodes())
