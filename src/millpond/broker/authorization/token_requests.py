"""What the four APIs of delegation tokens have in common."""

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
    """Why nothing of tokens is served to whoever asks.

    A token must not beget tokens: with one that was stolen somebody would never be out again. And who has not shown
    who they are cannot own one.
    """
    if call.asker is None and not may_ask(call):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return None if security.token_proofs.is_on else ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def may_ask(call: Call) -> bool:
    if call.is_own or call.principal.by_token or call.connection.protocol is SecurityProtocol.PLAINTEXT:
        return False
    return call.principal != ANONYMOUS


def owner_of(call: Call, kind: str | None, name: str | None) -> Principal:
    """For whom a token is to be; nobody named is whoever asks."""
    return Principal(kind or "", name) if name else call.principal


def lifetimes(node: NodeContext) -> Lifetimes:
    settings = node.settings
    return Lifetimes(settings[DELEGATION_TOKEN_MAX_LIFETIME_MS], settings[DELEGATION_TOKEN_EXPIRY_TIME_MS])
