"""SASL logins with PLAIN, SCRAM and OAUTHBEARER, as bytes in, bytes out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final, Protocol

from millpond.base.scram import HASHES, ScramClient, ScramFault
from millpond.remote.errors import LoginFailed
from millpond.remote.signed_tokens import TokenSource

OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", *HASHES, OAUTHBEARER)


class Conversation(Protocol):
    def first(self) -> bytes:
        """The first message."""

    def next(self, heard: bytes) -> bytes | None:
        """The next message; None when the conversation is over."""


@dataclass(slots=True, frozen=True)
class Login:
    mechanism: str
    username: str
    password: str = field(repr=False)
    is_token: bool = False
    """Whether these are the id and the HMAC of a delegation token."""
    tokens: TokenSource | None = None
    """The source of OAUTHBEARER tokens; then there is no name and no password."""

    def conversation(self) -> Conversation:
        if self.tokens is not None:
            return Bearer(self.tokens.token())
        if self.mechanism == "PLAIN":
            return Plain(self.username, self.password)
        return Scram(HASHES[self.mechanism], self.username, self.password, is_token=self.is_token)


class Plain:
    def __init__(self, username: str, password: str) -> None:
        self._said = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._said

    def next(self, heard: bytes) -> bytes | None:
        return None


class Bearer:
    """A signed token identifies us (RFC 7628)."""

    def __init__(self, token: str) -> None:
        self._said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()

    def first(self) -> bytes:
        return self._said

    def next(self, heard: bytes) -> bytes | None:
        # The broker reported what is wrong with the token, and fails the login once that is acknowledged.
        return b"\x01" if heard else None


class Scram:
    """The client side of SCRAM. The broker must prove that it knows the password."""

    def __init__(
        self, hash_name: str, username: str, password: str, nonce: str | None = None, *, is_token: bool = False
    ) -> None:
        mechanism = next(name for name, each in HASHES.items() if each == hash_name)
        nonce = nonce or secrets.token_urlsafe(24)
        self._inner = ScramClient(mechanism, username, password, nonce, is_token=is_token)

    def first(self) -> bytes:
        return self._inner.first()

    def next(self, heard: bytes) -> bytes | None:
        try:
            return self._inner.next(heard)
        except ScramFault as fault:
            raise LoginFailed(str(fault)) from None
