"""SCRAM (RFC 5802, 7677) without channel binding: key derivation, and the client side as bytes in, bytes out.

Names and passwords are used as they are (UTF-8), like in Kafka; they are not normalised.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from typing import Final

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

ITERATIONS_MAX: Final = 1_000_000
"""A broker that asks for more is after our CPU, not our password."""

TOKEN_EXTENSION: Final = "tokenauth"
"""The attribute in a client's first message that makes the user name a delegation token id."""

NO_BINDING: Final = "biws"
"""`n,,` in base 64."""


class ScramFault(Exception):
    """The other side violated the protocol."""


def salted(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """The slow part: never on the loop."""
    return hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)


def mac(hash_name: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hash_name)


def digest(hash_name: str, key: bytes) -> bytes:
    return hashlib.new(hash_name, key).digest()


def client_key_of(hash_name: str, salted_password: bytes) -> bytes:
    return mac(hash_name, salted_password, b"Client Key")


def keys_of(hash_name: str, salted_password: bytes) -> tuple[bytes, bytes]:
    """The stored key and the server key: what a broker keeps."""
    stored_key = digest(hash_name, client_key_of(hash_name, salted_password))
    return stored_key, mac(hash_name, salted_password, b"Server Key")


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def attributes(text: str) -> dict[str, str]:
    """The parts of a message by attribute or extension name; the first of each counts."""
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            values.setdefault(name, value)
    return values


def from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        raise ScramFault("invalid base64") from None


def to_base64(data: bytes) -> str:
    return b64encode(data).decode()


def escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


class ScramClient:
    """The client side. The broker must prove that it knows the password, too."""

    def __init__(
        self,
        mechanism: str,
        username: str,
        password: str,
        nonce: str,
        *,
        is_token: bool = False,
        stretch: Callable[[bytes, int], bytes] | None = None,
    ) -> None:
        """`stretch` returns the salted password for a salt and an iteration count without hashing."""
        self._hash = HASHES[mechanism]
        self._stretch = stretch
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={escaped(username)},r={nonce}" + (f",{TOKEN_EXTENSION}=true" if is_token else "")
        self._signature: bytes | None = None
        self.is_over = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def next(self, challenge: bytes) -> bytes | None:
        """The next message; None when the conversation is over."""
        if self.is_over:
            return None
        text = challenge.decode(errors="replace")
        values = attributes(text)
        if "e" in values:
            raise ScramFault(f"the broker refused the login: {values['e']}")
        if self._signature is None:
            return self._prove(text, values)
        if not hmac.compare_digest(_sense(values.get("v", "")), self._signature):
            raise ScramFault("the broker does not know the password itself: is it the right cluster?")
        self.is_over = True
        return None

    def _prove(self, challenge: str, values: dict[str, str]) -> bytes:
        nonce, count = values.get("r", ""), values.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramFault("the broker's nonce does not extend ours")
        if not (count.isascii() and count.isdigit() and 0 < int(count[:12]) <= ITERATIONS_MAX):
            raise ScramFault(f"the broker requires {count!r} iterations; at most {ITERATIONS_MAX} are supported")
        salt = _sense(values.get("s", ""))
        if self._stretch is None:
            salted_password = salted(self._hash, self._password, salt, int(count))
        else:
            salted_password = self._stretch(salt, int(count))
        client_key = client_key_of(self._hash, salted_password)
        stored_key, server_key = keys_of(self._hash, salted_password)
        final = f"c={NO_BINDING},r={nonce}"
        signed = f"{self._bare},{challenge},{final}".encode()
        proof = xor(client_key, mac(self._hash, stored_key, signed))
        self._signature = mac(self._hash, server_key, signed)
        return f"{final},p={to_base64(proof)}".encode()


def _sense(text: str) -> bytes:
    try:
        return from_base64(text)
    except ScramFault:
        raise ScramFault("the broker's response to the login is invalid") from None
