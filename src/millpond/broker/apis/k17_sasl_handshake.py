"""SaslHandshake (17), versions 0-1: choose the SASL mechanism.

0 the login messages that follow have no header · 1 they are SaslAuthenticate requests. A mechanism that is not
enabled is answered with those that are, and the connection is closed. A listener without SASL refuses it (34).
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

WITH_HEADER_FROM = 1


def handle(security: SecurityContext, call: Call, request: m.SaslHandshakeRequest) -> Outcome:
    return security.logins.handshake(call.connection, request.mechanism, is_raw=call.version < WITH_HEADER_FROM)


API = Api(key=17, name="SaslHandshake", versions=(0, 1), handle=handle, rights=FREE)
