"""Checks shared by the four delegation token APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.principal import ANONYMOUS, Principal
from millpond.config.listeners import SecurityProtocol
from millpond.config.login import DELEGATION_TOKEN_EXPIRY_TIME_MS, DELEGATION_TOKEN_MAX_LIFETIME_MS
from millpond.metadata.tokens import Lifetimes

if TYPE_CHECKING:
    from millpond.broker.context import NodeContext, SecurityContext
    from millpond.broker.requests.call import Call


def objection(security: SecurityContext, call: Call) -> ErrorCode | None:
    """The error for a client that may not use the token APIs; None if it may.

    A client authenticated by a token cannot create tokens: a thief could keep renewing its access forever. An
    unauthenticated client cannot own a token.
    """
    if call.asker is None and not may_ask(call):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return None if security.token_proofs.is_on else ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def may_ask(call: Call) -> bool:
    if call.is_own or call.principal.by_token or call.connection.protocol is SecurityProtocol.PLAINTEXT:
        return False
    return call.principal != ANONYMOUS


def owner_of(call: Call, kind: str | None, name: str | None) -> Principal:
    """The requested owner of a token, by default the requester."""
    return Principal(kind or "", name) if name else call.principal


def lifetimes(node: NodeContext) -> Lifetimes:
    settings = node.settings
    return Lifetimes(settings[DELEGATION_TOKEN_MAX_LIFETIME_MS], settings[DELEGATION_TOKEN_EXPIRY_TIME_MS])
