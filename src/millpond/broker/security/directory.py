"""The users and delegation tokens of the metadata, and the user that nodes log in to each other as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache
from typing import Final

from millpond.base.principal import USER, Principal
from millpond.base.scram import keys_of, mac, salted
from millpond.base.values import dataclass
from millpond.broker.security.mechanisms import TokenFacts
from millpond.broker.security.token_proofs import TokenProofs
from millpond.metadata.image import Image
from millpond.metadata.scram import ITERATIONS_USUAL, SALT_BYTES_USUAL, Credential, Mechanism
from millpond.metadata.tokens import end_ms, has_expired

NO_OWNER: Final = Principal(USER, "nobody")


@dataclass(frozen=True, slots=True)
class NodeUser:
    """The user that nodes log in as. Its password is in every node's settings, so checking it needs no metadata."""

    name: str
    password: str = field(repr=False)
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512

    def stretched(self, mechanism: Mechanism) -> tuple[bytes, int, bytes]:
        """Salt, iterations and the salted password; the first call takes some milliseconds."""
        return _stretched(self, mechanism)

    def credentials(self) -> Mapping[Mechanism, Credential]:
        """The SCRAM credentials derived from the password."""
        made = {}
        for mechanism in Mechanism:
            salt, iterations, stretched = self.stretched(mechanism)
            made[mechanism] = Credential(salt, *keys_of(mechanism.hash_name, stretched), iterations)
        return made


@cache
def _stretched(user: NodeUser, mechanism: Mechanism) -> tuple[bytes, int, bytes]:
    # The salt is the same on every node, as if it came from the metadata. It must not be derived from the password:
    # it is sent to any client, which could test guesses against it.
    salt = mac("sha512", b"the user of the nodes", f"{user.name} {mechanism}".encode())[:SALT_BYTES_USUAL]
    return salt, ITERATIONS_USUAL, salted(mechanism.hash_name, user.password.encode(), salt, ITERATIONS_USUAL)


class Users:
    """Implements `mechanisms.Directory` for one listener."""

    def __init__(
        self,
        image: Image,
        proofs: TokenProofs,
        wall_ms: Callable[[], int],
        own_secret: bytes,
        node_user: NodeUser | None = None,
    ) -> None:
        self._image = image
        self._proofs = proofs
        self._wall_ms = wall_ms
        self._own_secret = own_secret
        """Used until the cluster has a shared secret."""
        self._node_name = "" if node_user is None else node_user.name
        self._node_credentials = {} if node_user is None else node_user.credentials()

    def credential(self, user: str, mechanism: Mechanism) -> tuple[Credential, bool]:
        # Both are always computed, so the time taken does not reveal whether the user exists.
        pretended = self._pretend(user, mechanism)
        known = self._image.scram.get(user, mechanism)
        if self.is_node(user):
            known = self._node_credentials[mechanism]
        return (pretended, False) if known is None else (known, True)

    def is_node(self, user: str) -> bool:
        return bool(self._node_credentials) and user == self._node_name

    def strongest(self, user: str) -> Mechanism:
        if self.is_node(user):
            return Mechanism.SCRAM_SHA_512
        has = [mechanism for mechanism, _ in self._image.scram.of_user(user)]
        return max(has, default=self._image.scram.usual_mechanism)

    def token(self, token_id: str) -> tuple[TokenFacts, bool]:
        token = self._image.tokens.get(token_id)
        password = self._proofs.password_of(token_id)
        if token is None or password is None or has_expired(token, self._wall_ms()):
            return TokenFacts(token_id, NO_OWNER, password or self._own_secret, 0), False
        return TokenFacts(token_id, Principal.parse(token.owner), password, end_ms(token)), True

    def _pretend(self, user: str, mechanism: Mechanism) -> Credential:
        """A fake credential: constant for a name, and shaped like those of real users."""
        shape = self._image.scram.usual_shape(mechanism)
        secret = self._image.scram.secret or self._own_secret
        drawn = b""
        while len(drawn) < shape.salt_bytes:
            drawn += mac("sha512", secret, f"{mechanism} {len(drawn)} {user}".encode())
        key = mac(mechanism.hash_name, secret, drawn)
        return Credential(drawn[: shape.salt_bytes], key, key, shape.iterations)
