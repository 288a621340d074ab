"""SaslAuthenticate (36), versions 0-2: the messages of a login.

1 how long the session lasts (KIP-368) · 2 flexible. Every failure gets the same response (58), after a delay, and the
connection is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.authorization.required_rights import FREE
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import SecurityContext


def handle(security: SecurityContext, call: Call, request: m.SaslAuthenticateRequest) -> Outcome:
    return security.logins.authenticate(call.connection, bytes(request.auth_bytes))


API = Api(key=36, name="SaslAuthenticate", versions=(0, 2), handle=handle, rights=FREE)
