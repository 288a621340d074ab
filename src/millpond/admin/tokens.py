"""Create, renew, expire and list delegation tokens, which log a client in as their owner."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.admin.errors import unknown
from millpond.base.principal import USER
from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m

AT_ONCE_MS = -1
"""Expires a token immediately."""


@dataclass(frozen=True, slots=True)
class Token:
    token_id: str
    """The user name to log in with."""
    owner: str
    requester: str
    issued_ms: int
    expires_ms: int
    lasts_until_ms: int
    """The maximum lifetime, regardless of renewals."""
    renewers: tuple[str, ...] = ()
    hmac: bytes = field(default=b"", repr=False)

    @property
    def password(self) -> str:
        """The password to log in with; as powerful as the owner's."""
        return b64encode(self.hmac).decode()


def create_token(
    cluster: Cluster, owner: str | None = None, renewers: Sequence[str] = (), max_lifetime_ms: int = -1
) -> Token:
    """Create a token for the caller, or for `owner` if permitted; `renewers` and `owner` are user names."""
    request = m.CreateDelegationTokenRequest(
        owner_principal_type=USER if owner is not None else None,
        owner_principal_name=owner,
        renewers=[
            m.CreateDelegationTokenRequest.CreatableRenewers(principal_type=USER, principal_name=each)
            for each in renewers
        ],
        max_lifetime_ms=max_lifetime_ms,
    )

    def ask() -> Token:
        response = cluster.controller().ask(request, m.CreateDelegationTokenResponse)
        check(response.error_code, "no token was created")
        made = _principal(response.principal_type, response.principal_name)
        requester = _principal(response.token_requester_principal_type, response.token_requester_principal_name)
        return Token(
            response.token_id,
            made,
            requester,
            response.issue_timestamp_ms,
            response.expiry_timestamp_ms,
            response.max_timestamp_ms,
            tuple(f"{USER}:{each}" for each in renewers),
            bytes(response.hmac),
        )

    return cluster.retrying("create a token", ask)


def list_tokens(cluster: Cluster, owners: Sequence[str] | None = None) -> list[Token]:
    """All tokens visible to the caller, or those of these owners."""
    owner_filter = (
        None
        if owners is None
        else [
            m.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner(principal_type=USER, principal_name=each)
            for each in owners
        ]
    )

    def ask() -> list[Token]:
        response = cluster.any().ask(
            m.DescribeDelegationTokenRequest(owners=owner_filter), m.DescribeDelegationTokenResponse
        )
        check(response.error_code, "the tokens cannot be listed")
        return sorted(map(_token, response.tokens), key=lambda each: (each.owner, each.issued_ms, each.token_id))

    return cluster.retrying("ask for the tokens", ask)


def find_token(cluster: Cluster, token_id: str) -> Token:
    tokens = {each.token_id: each for each in list_tokens(cluster)}
    if token_id not in tokens:
        raise unknown("token", token_id, tokens, "list the tokens that you may see with `millpond token list`")
    return tokens[token_id]


def renew_token(cluster: Cluster, token: Token, period_ms: int = -1) -> int:
    """Extend the token by this period, or by the cluster's default; returns its new expiry time."""

    def ask() -> int:
        request = m.RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period_ms)
        response = cluster.controller().ask(request, m.RenewDelegationTokenResponse)
        check(response.error_code, f"token {token.token_id} was not renewed")
        return response.expiry_timestamp_ms

    return cluster.retrying("renew a token", ask)


def expire_token(cluster: Cluster, token: Token, period_ms: int = AT_ONCE_MS) -> int:
    """Expire the token now, or this long from now; returns its expiry time."""

    def ask() -> int:
        request = m.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
        response = cluster.controller().ask(request, m.ExpireDelegationTokenResponse)
        check(response.error_code, f"token {token.token_id} was not ended")
        return response.expiry_timestamp_ms

    return cluster.retrying("end a token", ask)


def _principal(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def _token(described: Any) -> Token:
    return Token(
        described.token_id,
        _principal(described.principal_type, described.principal_name),
        _principal(described.token_requester_principal_type, described.token_requester_principal_name),
        described.issue_timestamp,
        described.expiry_timestamp,
        described.max_timestamp,
        tuple(_principal(each.principal_type, each.principal_name) for each in described.renewers),
        bytes(described.hmac),
    )
