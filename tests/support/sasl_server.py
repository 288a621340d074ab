"""The broker's side of a login, as exchanges: bytes in, bytes out; raises WrongPassword on failure."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 4096


class WrongPassword(Exception):
    """An unknown user, or a wrong password."""


class PlainServer:
    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.is_over = False

    def answer(self, heard: bytes) -> bytes:
        _, user, password = heard.decode().split("\0")
        if self._users.get(user) != password:
            raise WrongPassword("Invalid username or password")
        self.is_over = True
        return b""


class ScramServer:
    """RFC 5802 without channel binding; it stores plain passwords, as only a test may."""

    def __init__(self, mechanism: str, users: Mapping[str, str], *, knows_passwords: bool = True) -> None:
        self._hash = HASHES[mechanism]
        self._users = users
        self._knows_passwords = knows_passwords
        self._first: tuple[str, str, bytes] | None = None
        self.is_over = False

    def answer(self, heard: bytes) -> bytes:
        if self._first is None:
            return self._challenge(heard.decode())
        return self._verdict(heard.decode())

    def _challenge(self, heard: str) -> bytes:
        assert heard.startswith("n,,"), heard
        bare = heard.removeprefix("n,,")
        said = _attributes(bare)
        user = said["n"].replace("=2C", ",").replace("=3D", "=")
        if user not in self._users:
            raise WrongPassword(f"no user {user}")
        salt = secrets.token_bytes(16)
        told = f"r={said['r']}{secrets.token_hex(8)},s={b64encode(salt).decode()},i={ITERATIONS}"
        salted = hashlib.pbkdf2_hmac(self._hash, self._users[user].encode(), salt, ITERATIONS)
        self._first = (bare, told, salted)
        return told.encode()

    def _verdict(self, heard: str) -> bytes:
        assert self._first is not None
        bare, told, salted = self._first
        without_proof, _, proof = heard.rpartition(",p=")
        assert _attributes(without_proof)["r"] == _attributes(told)["r"], heard
        signed = f"{bare},{told},{without_proof}".encode()
        client_key = self._mac(salted, b"Client Key")
        stored = hashlib.new(self._hash, client_key).digest()
        expected = bytes(a ^ b for a, b in zip(client_key, self._mac(stored, signed), strict=True))
        if b64decode(proof) != expected:
            raise WrongPassword("the proof is wrong")
        self.is_over = True
        server_key = self._mac(salted, b"Server Key") if self._knows_passwords else b"a guess"
        return b"v=" + b64encode(self._mac(server_key, signed))

    def _mac(self, key: bytes, said: bytes) -> bytes:
        return hmac.digest(key, said, self._hash)


def _attributes(said: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in said.split(",")}
