"""SCRAM users of a cluster: list, add, change passwords, remove.

The password never leaves this process: it is salted and hashed here, as Kafka's own tools do, and the cluster stores
only what it needs to verify it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millpond.admin.errors import Refused, unknown
from millpond.base.errors import ErrorCode
from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m

MECHANISMS: Final[Mapping[str, tuple[int, str]]] = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
"""Protocol number and hash function of each mechanism."""

ITERATIONS: Final = 8_192
"""Kafka accepts 4,096 to 16,384. More slows down guessing, but also every login."""

SALT_BYTES: Final = 32
PASSWORD_BYTES: Final = 24
"""Length of a generated password: unguessable, and 32 characters that need no quoting anywhere."""

_NAMES: Final = {number: name for name, (number, _) in MECHANISMS.items()}


@dataclass(frozen=True, slots=True)
class User:
    name: str
    mechanisms: Mapping[str, int]
    """Iteration count by mechanism."""


def random_password() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)


def list_users(cluster: Cluster, names: Collection[str] | None = None) -> list[User]:
    """All users, or those of `names` that exist."""
    user_filter = (
        None if names is None else [m.DescribeUserScramCredentialsRequest.UserName(name=each) for each in names]
    )

    def ask() -> list[User]:
        response = cluster.any().ask(
            m.DescribeUserScramCredentialsRequest(users=user_filter), m.DescribeUserScramCredentialsResponse
        )
        check(response.error_code, "the users cannot be listed", response.error_message)
        users = []
        for each in response.results:
            if each.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            check(each.error_code, f"user {each.user}", each.error_message)
            mechanisms = {
                _NAMES.get(info.mechanism, str(info.mechanism)): info.iterations for info in each.credential_infos
            }
            users.append(User(each.user, mechanisms))
        return sorted(users, key=lambda user: user.name)

    return cluster.retrying("ask for the users", ask)


def set_password(
    cluster: Cluster,
    name: str,
    password: str,
    mechanisms: Sequence[str] = tuple(MECHANISMS),
    iterations: int = ITERATIONS,
) -> None:
    """Add the user or change the password, for each of these mechanisms."""
    if not name or not password:
        raise Refused("The user's name or password is empty.")
    for each in mechanisms:
        number, hash_name = MECHANISMS[each]
        salt = secrets.token_bytes(SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=name, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
        )
        # Brokers accept one change per user in a request.
        request = m.AlterUserScramCredentialsRequest(upsertions=[upsertion])
        _alter(cluster, request, f"the password of user {name} for {each} was not changed")


def remove_user(cluster: Cluster, name: str, mechanisms: Collection[str] = ()) -> None:
    """Remove the credentials for these mechanisms, or for all, which removes the user."""
    user = find_user(cluster, name)
    gone = [each for each in user.mechanisms if not mechanisms or each in mechanisms]
    if not gone:
        raise Refused(f"User {name} has no password for {' or '.join(sorted(mechanisms))}.")
    for each in gone:
        deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(
            name=name, mechanism=MECHANISMS[each][0]
        )
        request = m.AlterUserScramCredentialsRequest(deletions=[deletion])
        _alter(cluster, request, f"the password of user {name} for {each} was not removed")


def find_user(cluster: Cluster, name: str) -> User:
    users = {each.name: each for each in list_users(cluster)}
    if name not in users:
        raise unknown("user", name, users, f"add one with `millpond user add {name}`")
    return users[name]


def _alter(cluster: Cluster, request: m.AlterUserScramCredentialsRequest, otherwise: str) -> None:
    def ask() -> None:
        response = cluster.controller().ask(request, m.AlterUserScramCredentialsResponse)
        for each in response.results:
            check(each.error_code, otherwise, each.error_message)

    cluster.retrying("change users", ask)
