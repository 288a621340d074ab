"""Users and their SCRAM credentials (RFC 5802): salted and iterated, never the password itself.

The user with an empty name is special: its keys are a secret that all nodes share. From it a user who does not exist
gets a stable salt, so that a client cannot find out which users exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.base.principal import USER
from millpond.base.scram import HASHES, keys_of
from millpond.base.values import dataclass
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

SECRET_USER: Final = ""
"""The name under which the nodes' shared secret is stored; no user can have it."""

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Kafka's limit: a PLAIN login makes a node compute all iterations."""

ITERATIONS_USUAL: Final = 8192
NAME_BYTES_MAX: Final = 256
SALT_BYTES_USUAL: Final = 32
SALT_BYTES_MAX: Final = 1024
USERS_MAX: Final = 100_000


class Mechanism(IntEnum):
    """SCRAM mechanisms, with the numbers of the protocol."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def label(self) -> str:
        """The SASL name."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return HASHES[self.label]


assert {each.label for each in Mechanism} == HASHES.keys()

MECHANISMS: Final[Mapping[str, Mechanism]] = {each.label: each for each in Mechanism}


@dataclass(frozen=True, slots=True)
class Credential:
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class Shape(NamedTuple):
    """What a client sees of a credential, and what checking a password against it costs."""

    salt_bytes: int
    iterations: int


_Key: TypeAlias = tuple[str, int]


class ScramCredentials:
    """All credentials, by user and mechanism; `replay` alone changes it."""

    def __init__(self, credentials: Mapping[_Key, Credential] | None = None) -> None:
        self._credentials: dict[_Key, Credential] = dict(credentials or {})
        self._shapes: dict[int, Shape] = {}
        self._usual_mechanism: Mechanism | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScramCredentials) and self._credentials == other._credentials

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._credentials)

    def copy(self) -> ScramCredentials:
        return ScramCredentials(self._credentials)

    def get(self, user: str, mechanism: int) -> Credential | None:
        return self._credentials.get((user, mechanism)) if user != SECRET_USER else None

    @property
    def had_users(self) -> bool:
        """Whether a user was ever created, even if all have been removed since."""
        return bool(self._credentials)

    @property
    def secret(self) -> bytes | None:
        """The secret that only the nodes know; None before there is any user."""
        credential = self._credentials.get((SECRET_USER, Mechanism.SCRAM_SHA_512))
        return None if credential is None else credential.server_key

    def users(self) -> list[str]:
        return sorted({user for user, _ in self._credentials if user != SECRET_USER})

    def of_user(self, user: str) -> list[tuple[Mechanism, Credential]]:
        credentials = ((each, self.get(user, each)) for each in Mechanism)
        return [(mechanism, credential) for mechanism, credential in credentials if credential is not None]

    def usual_shape(self, mechanism: int) -> Shape:
        """The most common shape: that of a nonexistent credential must look the same."""
        shape = self._shapes.get(mechanism)
        if shape is None:
            counts: dict[Shape, int] = {}
            for (user, each), credential in self._credentials.items():
                if each == mechanism and user != SECRET_USER:
                    like = Shape(len(credential.salt), credential.iterations)
                    counts[like] = counts.get(like, 0) + 1
            usual = Shape(SALT_BYTES_USUAL, ITERATIONS_USUAL)
            shape = self._shapes[mechanism] = max(counts, key=lambda each: (counts[each], each), default=usual)
        return shape

    @property
    def usual_mechanism(self) -> Mechanism:
        """The most common mechanism."""
        if self._usual_mechanism is None:
            counts = Counter(mechanism for user, mechanism in self._credentials if user != SECRET_USER)
            usual = max(counts, key=lambda each: (counts[each], each), default=int(Mechanism.SCRAM_SHA_512))
            self._usual_mechanism = Mechanism(usual)
        return self._usual_mechanism

    def replay(self, record: UserScramCredentialRecord | RemoveUserScramCredentialRecord) -> None:
        if isinstance(record, UserScramCredentialRecord):
            self._credentials[record.name, record.mechanism] = Credential(
                record.salt, record.stored_key, record.server_key, record.iterations
            )
        else:
            self._credentials.pop((record.name, record.mechanism), None)
        self._shapes.clear()
        self._usual_mechanism = None

    def records(self) -> Iterator[UserScramCredentialRecord]:
        """All of it, for a snapshot."""
        return (_record(key, credential) for key, credential in self._credentials.items())

    def records_since(
        self, old: ScramCredentials
    ) -> Iterator[UserScramCredentialRecord | RemoveUserScramCredentialRecord]:
        """What has changed since."""
        for key in old._credentials.keys() - self._credentials.keys():
            yield RemoveUserScramCredentialRecord(*key)
        for key, credential in self._credentials.items():
            if old._credentials.get(key) != credential:
                yield _record(key, credential)


def _record(key: _Key, credential: Credential) -> UserScramCredentialRecord:
    user, mechanism = key
    return UserScramCredentialRecord(
        user, mechanism, credential.salt, credential.stored_key, credential.server_key, credential.iterations
    )


@dataclass(frozen=True, slots=True)
class Deletion:
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class Upsertion:
    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlteredUser:
    user: str
    verdict: Verdict


class WithScram(Protocol):
    """The part of the image that this module uses, to avoid a circular import."""

    scram: ScramCredentials

    @property
    def tokens(self) -> Iterable[DelegationTokenRecord]: ...


def decide_alter_credentials(
    image: WithScram, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion], fresh_secret: bytes
) -> Decision[tuple[AlteredUser, ...]]:
    """Change credentials, each user at most once. `fresh_secret` is random, for the very first one.

    An error with one user does not affect the others. Removing the last credential removes the user: their delegation
    tokens end with it, including those they created for others.
    """
    changed_users = [each.user for each in deletions] + [each.user for each in upsertions]
    verdicts: dict[str, Verdict] = {}
    for user in changed_users:
        verdicts[user] = OK if user not in verdicts else _TWICE
    records: list[UserScramCredentialRecord | RemoveUserScramCredentialRecord] = []
    users = set(image.scram.users())
    for deletion in deletions:
        if verdicts[deletion.user].ok:
            verdicts[deletion.user] = verdict = _judge_deletion(image.scram, deletion)
            if verdict.ok:
                records.append(RemoveUserScramCredentialRecord(deletion.user, deletion.mechanism))
    for upsertion in upsertions:
        if verdicts[upsertion.user].ok:
            verdict = _judge_upsertion(upsertion)
            if verdict.ok and upsertion.user not in users and len(users) >= USERS_MAX:
                verdict = _bad(f"the cluster has reached its limit of {USERS_MAX} users")
            verdicts[upsertion.user] = verdict
            if verdict.ok:
                users.add(upsertion.user)
                records.append(upserted(upsertion))
    after = image.scram.copy()
    for each in records:
        after.replay(each)
    gone = users.difference(after.users())
    return Decision(
        (*records, *_secret_records(image.scram, after, fresh_secret), *_ended_tokens(image.tokens, gone)),
        tuple(AlteredUser(user, verdict) for user, verdict in verdicts.items()),
    )


def _ended_tokens(tokens: Iterable[DelegationTokenRecord], users: Set[str]) -> list[RemoveDelegationTokenRecord]:
    names = {f"{USER}:{user}" for user in users}
    if not names:
        return []
    return [RemoveDelegationTokenRecord(each.token_id) for each in tokens if names & {each.owner, each.requester}]


def _secret_records(
    before: ScramCredentials, after: ScramCredentials, fresh_secret: bytes
) -> list[UserScramCredentialRecord]:
    """The shared secret is written with the first credential and outlives the last one."""
    return [secret_record(fresh_secret)] if after.users() and not before.secret else []


def upserted(upsertion: Upsertion) -> UserScramCredentialRecord:
    stored_key, server_key = keys_of(Mechanism(upsertion.mechanism).hash_name, upsertion.salted_password)
    return UserScramCredentialRecord(
        upsertion.user, upsertion.mechanism, upsertion.salt, stored_key, server_key, upsertion.iterations
    )


def forget_users_ever_existed(credentials: ScramCredentials) -> list[RemoveUserScramCredentialRecord]:
    """Remove the shared secret, the only credential left once all users are gone."""
    return [RemoveUserScramCredentialRecord(SECRET_USER, Mechanism.SCRAM_SHA_512)] if credentials.secret else []


def secret_record(fresh_secret: bytes) -> UserScramCredentialRecord:
    stored_key, server_key = keys_of(Mechanism.SCRAM_SHA_512.hash_name, fresh_secret)
    mechanism = Mechanism.SCRAM_SHA_512
    return UserScramCredentialRecord(SECRET_USER, mechanism, b"", stored_key, server_key, ITERATIONS_MIN)


_TWICE: Final = Verdict(ErrorCode.DUPLICATE_RESOURCE, "a request cannot change a user's credentials twice")


def _bad(why: str) -> Verdict:
    return Verdict(ErrorCode.UNACCEPTABLE_CREDENTIAL, why)


def name_fault(user: str) -> str | None:
    """Why a user name is invalid."""
    if user == SECRET_USER:
        return "the user name is empty"
    if len(user.encode()) > NAME_BYTES_MAX:
        return f"a user name may have at most {NAME_BYTES_MAX} bytes"
    if any(ord(each) < 0x20 or ord(each) == 0x7F for each in user):
        return "a user name may not contain control characters"
    return None


def _judge_name(user: str, mechanism: int) -> Verdict:
    if (fault := name_fault(user)) is not None:
        return _bad(fault)
    if mechanism not in Mechanism.__members__.values():
        return Verdict(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"unknown SCRAM mechanism {mechanism}")
    return OK


def _judge_deletion(credentials: ScramCredentials, deletion: Deletion) -> Verdict:
    verdict = _judge_name(deletion.user, deletion.mechanism)
    if verdict.ok and credentials.get(deletion.user, deletion.mechanism) is None:
        return Verdict(ErrorCode.RESOURCE_NOT_FOUND, "no such credential")
    return verdict


def _judge_upsertion(upsertion: Upsertion) -> Verdict:
    verdict = _judge_name(upsertion.user, upsertion.mechanism)
    if not verdict.ok:
        return verdict
    if not ITERATIONS_MIN <= upsertion.iterations <= ITERATIONS_MAX:
        return _bad(f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {upsertion.iterations}")
    if not 0 < len(upsertion.salt) <= SALT_BYTES_MAX:
        return _bad(f"the salt must have from 1 to {SALT_BYTES_MAX} bytes")
    if not 0 < len(upsertion.salted_password) <= SALT_BYTES_MAX:
        return _bad("the salted password is missing or too long")
    return OK


@dataclass(frozen=True, slots=True)
class DescribedUser:
    user: str
    verdict: Verdict
    credentials: tuple[tuple[int, int], ...] = ()
    """Mechanism and iterations."""


def describe_users(credentials: ScramCredentials, users: Sequence[str] | None) -> Iterator[DescribedUser]:
    """The named users; all if none are named."""
    for user, count in Counter(users or credentials.users()).items():
        described = tuple(
            (int(mechanism), credential.iterations) for mechanism, credential in credentials.of_user(user)
        )
        if count > 1:
            yield DescribedUser(user, Verdict(ErrorCode.DUPLICATE_RESOURCE, "the request names a user twice"))
        elif not described:
            yield DescribedUser(user, Verdict(ErrorCode.RESOURCE_NOT_FOUND, "no such user"))
        else:
            yield DescribedUser(user, OK, described)
