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

NOBODY: Final = ""
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
        return self._credentials.get((user, mechanism)) if user != NOBODY else None

    @property
    def had_users(self) -> bool:
        """Whether a user was ever created, even if all have been removed since."""
        return bool(self._credentials)

    @property
    def secret(self) -> bytes | None:
        """The secret that only the nodes know; None before there is any user."""
        nobody = self._credentials.get((NOBODY, Mechanism.SCRAM_SHA_512))
        return None if nobody is None else nobody.server_key

    def users(self) -> list[str]:
        return sorted({user for user, _ in self._credentials if user != NOBODY})

    def of_user(self, user: str) -> list[tuple[Mechanism, Credential]]:
        found = ((each, self.get(user, each)) for each in Mechanism)
        return [(mechanism, credential) for mechanism, credential in found if credential is not None]

    def usual_shape(self, mechanism: int) -> Shape:
        """The most common shape: that of a nonexistent credential must look the same."""
        shape = self._shapes.get(mechanism)
        if shape is None:
            counts: dict[Shape, int] = {}
            for (user, each), known in self._credentials.items():
                if each == mechanism and user != NOBODY:
                    like = Shape(len(known.salt), known.iterations)
                    counts[like] = counts.get(like, 0) + 1
            usual = Shape(SALT_BYTES_USUAL, ITERATIONS_USUAL)
            shape = self._shapes[mechanism] = max(counts, key=lambda each: (counts[each], each), default=usual)
        return shape

    @property
    def usual_mechanism(self) -> Mechanism:
        """The most common mechanism."""
        if self._usual_mechanism is None:
            counts = Counter(mechanism for user, mechanism in self._credentials if user != NOBODY)
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
    asked = [each.user for each in deletions] + [each.user for each in upsertions]
    verdicts: dict[str, Verdict] = {}
    for user in asked:
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
                verdict = _bad(f"there are {USERS_MAX} users already, which is the most there can be")
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
    known: ScramCredentials, after: ScramCredentials, fresh_secret: bytes
) -> list[UserScramCredentialRecord]:
    """The shared secret is written with the first credential and outlives the last one."""
    return [nobody_record(fresh_secret)] if after.users() and not known.secret else []


def upserted(wanted: Upsertion) -> UserScramCredentialRecord:
    stored_key, server_key = keys_of(Mechanism(wanted.mechanism).hash_name, wanted.salted_password)
    return UserScramCredentialRecord(
        wanted.user, wanted.mechanism, wanted.salt, stored_key, server_key, wanted.iterations
    )


def forget_users_ever_existed(known: ScramCredentials) -> list[RemoveUserScramCredentialRecord]:
    """Remove the shared secret, the only credential left once all users are gone."""
    return [RemoveUserScramCredentialRecord(NOBODY, Mechanism.SCRAM_SHA_512)] if known.secret else []


def nobody_record(fresh_secret: bytes) -> UserScramCredentialRecord:
    stored_key, server_key = keys_of(Mechanism.SCRAM_SHA_512.hash_name, fresh_secret)
    return UserScramCredentialRecord(NOBODY, Mechanism.SCRAM_SHA_512, b"", stored_key, server_key, ITERATIONS_MIN)


_TWICE: Final = Verdict(ErrorCode.DUPLICATE_RESOURCE, "a user's credentials cannot be changed twice in one request")


def _bad(why: str) -> Verdict:
    return Verdict(ErrorCode.UNACCEPTABLE_CREDENTIAL, why)


def name_fault(user: str) -> str | None:
    """Why a user name is invalid."""
    if user == NOBODY:
        return "a user must have a name"
    if len(user.encode()) > NAME_BYTES_MAX:
        return f"the name of a user may have {NAME_BYTES_MAX} bytes at most"
    if any(ord(each) < 0x20 or ord(each) == 0x7F for each in user):
        return "the name of a user may not hold control characters"
    return None


def _judge_name(user: str, mechanism: int) -> Verdict:
    if (fault := name_fault(user)) is not None:
        return _bad(fault)
    if mechanism not in Mechanism.__members__.values():
        return Verdict(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {mechanism}")
    return OK


def _judge_deletion(known: ScramCredentials, wanted: Deletion) -> Verdict:
    verdict = _judge_name(wanted.user, wanted.mechanism)
    if verdict.ok and known.get(wanted.user, wanted.mechanism) is None:
        return Verdict(ErrorCode.RESOURCE_NOT_FOUND, "there is no such credential")
    return verdict


def _judge_upsertion(wanted: Upsertion) -> Verdict:
    verdict = _judge_name(wanted.user, wanted.mechanism)
    if not verdict.ok:
        return verdict
    if not ITERATIONS_MIN <= wanted.iterations <= ITERATIONS_MAX:
        return _bad(f"there must be from {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, not {wanted.iterations}")
    if not 0 < len(wanted.salt) <= SALT_BYTES_MAX:
        return _bad(f"the salt must have from 1 to {SALT_BYTES_MAX} bytes")
    if not 0 < len(wanted.salted_password) <= SALT_BYTES_MAX:
        return _bad("the salted password is missing, or too long to be one")
    return OK


@dataclass(frozen=True, slots=True)
class DescribedUser:
    user: str
    verdict: Verdict
    credentials: tuple[tuple[int, int], ...] = ()
    """Mechanism and iterations."""


def describe_users(known: ScramCredentials, users: Sequence[str] | None) -> Iterator[DescribedUser]:
    """The named users; all if none are named."""
    for user, count in Counter(users or known.users()).items():
        found = tuple((int(mechanism), credential.iterations) for mechanism, credential in known.of_user(user))
        if count > 1:
            yield DescribedUser(user, Verdict(ErrorCode.DUPLICATE_RESOURCE, "a user is named twice in one request"))
        elif not found:
            yield DescribedUser(user, Verdict(ErrorCode.RESOURCE_NOT_FOUND, "there is no such user"))
        else:
            yield DescribedUser(user, OK, found)
