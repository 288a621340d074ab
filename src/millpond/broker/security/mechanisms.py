"""The server side of each SASL mechanism as a conversation: bytes in, bytes out. No sockets, clocks or threads.

Slow steps (hashing a password, checking a signature) are returned as `Work` for the caller to run off the loop; steps
that have to wait for something first (a key) as a `Later`. An unknown user goes through the same exchange as a known
one and fails at the same point.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, Protocol, TypeAlias

from millpond.base.later import Later
from millpond.base.principal import USER, Principal
from millpond.base.scram import (
    NO_BINDING,
    TOKEN_EXTENSION,
    ScramFault,
    attributes,
    digest,
    from_base64,
    keys_of,
    mac,
    salted,
    to_base64,
    xor,
)
from millpond.base.values import dataclass
from millpond.metadata.scram import MECHANISMS, NAME_BYTES_MAX, Credential, Mechanism

PASSWORD_BYTES_MAX: Final = 1024
NONCE_MAX: Final = 256
WRONG: Final = "no such user, or the wrong password"

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
ALL: Final = (PLAIN, *MECHANISMS, OAUTHBEARER)


class LoginRefused(Exception):
    """Authentication failed. The text is for our own log, not for the client."""

    def __init__(self, why: str, claimed: str | None = None) -> None:
        super().__init__(why)
        self.claimed = claimed
        """The user that the client claimed to be."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    principal: Principal
    until_ms: int | None = None
    """When the credential expires, on the wall clock."""
    shown: str = ""
    """What the client authenticated with: its SCRAM mechanism, or the id of its delegation token. The session ends
    when that credential or token is removed."""
    is_node: bool = False
    """Whether it is the node user, whose sessions never expire."""


@dataclass(frozen=True, slots=True)
class Said:
    """The broker's next message. The conversation is complete when `authenticated` is set."""

    text: bytes
    authenticated: Authenticated | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """A job to run off the loop; `then` continues with its result."""

    job: Callable[[], Any]
    then: Callable[[Any], Said]


Answer: TypeAlias = Said | Work
AnswerLater: TypeAlias = Answer | Later[Answer]


class Conversation(Protocol):
    def answer(self, heard: bytes) -> AnswerLater:
        """The reply to a client message. LoginRefused ends the conversation."""


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """A delegation token, as a login needs it."""

    token_id: str
    owner: Principal
    password: bytes = field(repr=False)
    until_ms: int


class Directory(Protocol):
    """Looks up users and delegation tokens."""

    def credential(self, user: str, mechanism: Mechanism) -> tuple[Credential, bool]:
        """The user's credential and True, or a fake of the same shape and False."""

    def token(self, token_id: str) -> tuple[TokenFacts, bool]:
        """The delegation token and True, or a fake and False."""

    def is_node(self, user: str) -> bool:
        """Whether this is the user that nodes log in to each other as."""

    def strongest(self, user: str) -> Mechanism:
        """The mechanism whose credential a PLAIN password is checked against."""


class Plain:
    """RFC 4616: user name and password in clear text, checked against the SCRAM credential."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._is_over = False

    def answer(self, heard: bytes) -> Answer:
        if self._is_over:
            raise LoginRefused("a second message where there is only one")
        self._is_over = True
        try:
            asked_for, user, password = heard.decode().split("\0")
        except ValueError:
            raise LoginRefused("not a message of PLAIN") from None
        secret = password.encode()
        if not user or not secret or len(user.encode()) > NAME_BYTES_MAX or len(secret) > PASSWORD_BYTES_MAX:
            raise LoginRefused("a name or a password that cannot be one")
        if asked_for not in ("", user):
            raise LoginRefused("it wants to act as somebody else")
        mechanism = self._directory.strongest(user)
        credential, exists = self._directory.credential(user, mechanism)
        hash_name = mechanism.hash_name

        def compare(salted_password: bytes) -> Said:
            stored_key, _ = keys_of(hash_name, salted_password)
            is_right = hmac.compare_digest(stored_key, credential.stored_key)
            # The credential may have been changed or removed in the meantime.
            is_current = self._directory.credential(user, mechanism) == (credential, exists)
            if not (is_right and exists and is_current):
                raise LoginRefused(WRONG, user)
            return Said(b"", _known_by(user, mechanism, is_node=self._directory.is_node(user)))

        return Work(lambda: salted(hash_name, secret, credential.salt, credential.iterations), compare)


class Scram:
    """RFC 5802 with Kafka's delegation token extension (KIP-48), without channel binding."""

    def __init__(self, mechanism: Mechanism, directory: Directory, nonce: str) -> None:
        self._mechanism = mechanism
        self._hash = mechanism.hash_name
        self._directory = directory
        self._own_nonce = nonce
        self._nonce = self._claimed = ""
        self._signed_first = ""
        self._credential: Credential | None = None
        self._exists = False
        self._result: Authenticated | None = None
        self._is_current: Callable[[], bool] = lambda: False
        self._is_over = False

    def answer(self, heard: bytes) -> Answer:
        if self._is_over:
            raise LoginRefused("a message where the conversation is over")
        try:
            text = heard.decode()
            return self._challenge(text) if self._credential is None else self._verdict(text)
        except (ScramFault, UnicodeDecodeError) as fault:
            raise LoginRefused(str(fault)) from None

    def _challenge(self, heard: str) -> Answer:
        binding, _, rest = heard.partition(",")
        asked_for, _, bare = rest.partition(",")
        said = attributes(bare)
        name, nonce = said.get("n", ""), said.get("r", "")
        user = _unescaped(name)
        if binding != "n" or not bare.startswith("n="):
            raise LoginRefused("not a first message of SCRAM, or one that wants channel binding")
        if not user or len(user.encode()) > NAME_BYTES_MAX or not 0 < len(nonce) <= NONCE_MAX:
            raise LoginRefused("a name or a nonce that cannot be one")
        if asked_for and _unescaped(asked_for.removeprefix("a=")) != user:
            raise LoginRefused("it wants to act as somebody else")
        self._nonce, self._claimed = nonce + self._own_nonce, user
        if said.get(TOKEN_EXTENSION, "").lower() == "true":
            return self._challenge_token(user, bare)
        self._result = _known_by(user, self._mechanism, is_node=self._directory.is_node(user))
        found = self._directory.credential(user, self._mechanism)
        self._is_current = lambda: self._directory.credential(user, self._mechanism) == found
        return self._ask(bare, *found)

    def _challenge_token(self, token_id: str, bare: str) -> Work:
        """The credential is derived for this one login from the token's HMAC, which is long and random."""
        token, exists = self._directory.token(token_id)
        like, _ = self._directory.credential(token_id, self._mechanism)
        owner = Principal(token.owner.kind, token.owner.name, by_token=True)
        self._result = Authenticated(owner, token.until_ms, shown=token.token_id)
        self._is_current = lambda: self._directory.token(token_id) == (token, exists)

        def ask(salted_password: bytes) -> Said:
            return self._ask(
                bare, Credential(like.salt, *keys_of(self._hash, salted_password), like.iterations), exists
            )

        return Work(lambda: salted(self._hash, token.password, like.salt, like.iterations), ask)

    def _ask(self, bare: str, credential: Credential, exists: bool) -> Said:
        self._credential, self._exists = credential, exists
        asked = f"r={self._nonce},s={to_base64(credential.salt)},i={credential.iterations}"
        self._signed_first = f"{bare},{asked}"
        return Said(asked.encode())

    def _verdict(self, heard: str) -> Said:
        self._is_over = True
        credential, result = self._credential, self._result
        assert credential is not None
        assert result is not None
        without_proof, comma, last = heard.rpartition(",p=")
        said = attributes(without_proof)
        if not comma or said.get("c") != NO_BINDING or said.get("r") != self._nonce:
            raise LoginRefused("a last message that does not belong to the first")
        proof = from_base64(last)
        if len(proof) != len(credential.stored_key):
            raise LoginRefused("a proof of the wrong length")
        signed = f"{self._signed_first},{without_proof}".encode()
        client_key = xor(proof, mac(self._hash, credential.stored_key, signed))
        is_right = hmac.compare_digest(digest(self._hash, client_key), credential.stored_key)
        # The credential or token may have been changed or removed since the challenge.
        is_current = self._is_current()
        if not (is_right and self._exists and is_current):
            raise LoginRefused(WRONG, self._claimed)
        signature = mac(self._hash, credential.server_key, signed)
        return Said(f"v={to_base64(signature)}".encode(), result)


def _known_by(user: str, mechanism: Mechanism, *, is_node: bool) -> Authenticated:
    return Authenticated(Principal(USER, user, by_password=not is_node), shown=mechanism.label, is_node=is_node)


def _unescaped(name: str) -> str:
    plain = name.replace("=2C", ",").replace("=3D", "=")
    if name.count("=") != name.count("=2C") + name.count("=3D"):
        raise ScramFault("a name with a lone '='")
    return plain


class TokenChecker(Protocol):
    """Validates signed tokens (OAUTHBEARER)."""

    def begin(self, token: str) -> Later[Callable[[], Authenticated]]:
        """The check to run off the loop, once the signing key is available. Both fail with LoginRefused."""


class OauthBearer:
    """RFC 7628: one signed token. An invalid one is answered with an error, which the client acknowledges."""

    def __init__(self, checker: TokenChecker) -> None:
        self._checker = checker
        self._refused: LoginRefused | None = None
        self._has_asked = False

    def answer(self, heard: bytes) -> AnswerLater:
        if self._refused is not None:
            raise self._refused
        if self._has_asked:
            raise LoginRefused("a second token")
        self._has_asked = True
        try:
            header, *pairs = heard.decode().split("\x01")
        except UnicodeDecodeError:
            raise LoginRefused("not a message of OAUTHBEARER") from None
        said = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        kind, _, token = said.get("auth", "").partition(" ")
        binding, _, rest = header.partition(",")
        if binding != "n" or kind.lower() != "bearer" or not token:
            raise LoginRefused("not a message of OAUTHBEARER, or one without a token")
        asked_for = rest.partition(",")[0].removeprefix("a=")

        def work(check: Callable[[], Authenticated]) -> Answer:
            return Work(lambda: _result_of(check), lambda result: self._judge(result, asked_for))

        def refuse(refused: LoginRefused) -> Answer:
            return self._judge(refused, asked_for)

        return self._checker.begin(token.strip()).map(work).recover(LoginRefused, refuse)

    def _judge(self, result: Authenticated | LoginRefused, asked_for: str) -> Said:
        if isinstance(result, LoginRefused):
            self._refused = result
            return Said(json.dumps({"status": "invalid_token"}).encode())
        if asked_for not in ("", result.principal.name):
            raise LoginRefused("it wants to act as somebody else")
        return Said(b"", result)


def _result_of(check: Callable[[], Authenticated]) -> Authenticated | LoginRefused:
    try:
        return check()
    except LoginRefused as refused:
        return refused
