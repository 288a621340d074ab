"""Logging in: PLAIN and SCRAM as conversations, bytes in, bytes out."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass, field
from typing import Final, Protocol

from millpond.remote.errors import LoginFailed

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = ("PLAIN", *HASHES)
ITERATIONS_MAX: Final = 1_000_000
"""A broker that asks for more wants our processor, not our password."""


class Conversation(Protocol):
    def first(self) -> bytes:
        """What we say first."""

    def next(self, heard: bytes) -> bytes | None:
        """What we answer; None when there is no more to say."""


@dataclass(slots=True, frozen=True)
class Login:
    mechanism: str
    username: str
    password: str = field(repr=False)

    def conversation(self) -> Conversation:
        if self.mechanism == "PLAIN":
            return Plain(self.username, self.password)
        return Scram(HASHES[self.mechanism], self.username, self.password)


class Plain:
    def __init__(self, username: str, password: str) -> None:
        self._said = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._said

    def next(self, heard: bytes) -> bytes | None:
        return None


class Scram:
    """The client's side of RFC 5802, without channel binding. The broker must show that it knows the password."""

    def __init__(self, hash_name: str, username: str, password: str, nonce: str | None = None) -> None:
        self._hash = hash_name
        self._password = password.encode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._bare = f"n={name},r={self._nonce}"
        self._signature: bytes | None = None
        self._is_over = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def next(self, heard: bytes) -> bytes | None:
        if self._is_over:
            return None
        if self._signature is None:
            return self._prove(heard.decode(errors="replace"))
        said = _attributes(heard.decode(errors="replace"))
        if "e" in said:
            raise LoginFailed(f"the broker refuses the login: {said['e']}")
        if not hmac.compare_digest(_base64(said.get("v", "")), self._signature):
            raise LoginFailed("the broker does not know the password itself: is it the right cluster?")
        self._is_over = True
        return None

    def _prove(self, heard: str) -> bytes:
        said = _attributes(heard)
        if "e" in said:
            raise LoginFailed(f"the broker refuses the login: {said['e']}")
        nonce, count = said.get("r", ""), said.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise LoginFailed("the broker did not answer our question: its nonce is not ours")
        if not (count.isascii() and count.isdigit() and 0 < int(count[:12]) <= ITERATIONS_MAX):
            raise LoginFailed(f"the broker asks for {count!r} rounds of hashing; at most {ITERATIONS_MAX} are done")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _base64(said.get("s", "")), int(count))
        client_key = self._mac(salted, b"Client Key")
        final = f"c=biws,r={nonce}"
        signed = f"{self._bare},{heard},{final}".encode()
        mask = self._mac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), signed)
        return f"{final},p={b64encode(proof).decode()}".encode()

    def _mac(self, key: bytes, said: bytes) -> bytes:
        return hmac.digest(key, said, self._hash)


def _attributes(said: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in said.split(",") if part[1:2] == "="}


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        raise LoginFailed("the broker's answer to the login makes no sense") from None
