"""Delegation tokens (KIP-48): short-lived, revocable passwords for their owner.

The metadata hold a token's owner and lifetime. Its HMAC is derived from its id and a secret that only the nodes know,
and is never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.base.principal import USER
from millpond.base.values import dataclass
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from millpond.metadata.scram import ScramCredentials, name_fault

FOREVER_MS: Final = (1 << 63) - 1
NO_TIME: Final = -1
RENEWERS_MAX: Final = 100
TOKENS_MAX: Final = 20_000
TOKENS_OF_ONE_MAX: Final = 1_000
"""Creating tokens for oneself needs no permission: one user must not use them all up."""

BYTES_MAX: Final = 8 << 20
BYTES_OF_ONE_MAX: Final = 256 << 10
"""The same for their size in the metadata: every node keeps them in memory, and every snapshot contains them."""

_BYTES_OF_TOKEN: Final = 128
"""Id, times, and the fixed cost of a record."""

_BYTES_OF_NAME: Final = 16
"""The cost of a principal besides its bytes: many short renewers take as much time as a few long ones."""


class Usage(NamedTuple):
    """How many tokens a requester has, and their size in the metadata."""

    tokens: int = 0
    bytes: int = 0

    def plus(self, other: Usage) -> Usage:
        return Usage(self.tokens + other.tokens, self.bytes + other.bytes)

    def minus(self, other: Usage) -> Usage:
        return Usage(self.tokens - other.tokens, self.bytes - other.bytes)


def usage_of(owner: str, requester: str, renewers: Sequence[str]) -> Usage:
    """The usage of one token."""
    names = (owner, requester, *renewers)
    return Usage(1, _BYTES_OF_TOKEN + sum(len(each.encode()) + _BYTES_OF_NAME for each in names))


_NOTHING: Final = Usage()


class DelegationTokens:
    """All tokens, by id; `replay` alone changes it."""

    def __init__(self, tokens: Mapping[str, DelegationTokenRecord] | None = None, comings: int = 0) -> None:
        self._tokens: dict[str, DelegationTokenRecord] = {}
        self._usage: dict[str, Usage] = {}
        self.total = _NOTHING
        for each in (tokens or {}).values():
            self._put(each)
        self.comings = comings
        """Rises with every new token."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DelegationTokens) and self._tokens == other._tokens

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[DelegationTokenRecord]:
        return iter(self._tokens.values())

    def copy(self) -> DelegationTokens:
        copied = DelegationTokens(None, self.comings)
        copied._tokens, copied._usage, copied.total = dict(self._tokens), dict(self._usage), self.total
        return copied

    def usage(self, requester: str) -> Usage:
        """The usage of the tokens that this principal has requested."""
        return self._usage.get(requester, _NOTHING)

    def get(self, token_id: str) -> DelegationTokenRecord | None:
        return self._tokens.get(token_id)

    def replay(self, record: DelegationTokenRecord | RemoveDelegationTokenRecord) -> None:
        if isinstance(record, DelegationTokenRecord):
            self.comings += record.token_id not in self._tokens
            self._remove(record.token_id)
            self._put(record)
        else:
            self._remove(record.token_id)

    def _put(self, token: DelegationTokenRecord) -> None:
        self._tokens[token.token_id] = token
        used = usage_of(token.owner, token.requester, token.renewers)
        self._usage[token.requester] = self.usage(token.requester).plus(used)
        self.total = self.total.plus(used)

    def _remove(self, token_id: str) -> None:
        token = self._tokens.pop(token_id, None)
        if token is None:
            return
        used = usage_of(token.owner, token.requester, token.renewers)
        self.total = self.total.minus(used)
        left = self.usage(token.requester).minus(used)
        if left.tokens:
            self._usage[token.requester] = left
        else:
            del self._usage[token.requester]

    def records(self) -> Iterator[DelegationTokenRecord]:
        """All of it, for a snapshot."""
        return iter(self._tokens.values())

    def records_since(self, old: DelegationTokens) -> Iterator[DelegationTokenRecord | RemoveDelegationTokenRecord]:
        """What has changed since."""
        for token_id in old._tokens.keys() - self._tokens.keys():
            yield RemoveDelegationTokenRecord(token_id)
        for token_id, token in self._tokens.items():
            if old._tokens.get(token_id) != token:
                yield token


def end_ms(token: DelegationTokenRecord) -> int:
    """When it expires, inclusive."""
    return min(token.max_timestamp, token.expiration_timestamp)


def has_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    return end_ms(token) < now_ms


def is_of(token: DelegationTokenRecord, principal: str) -> bool:
    """Whether this principal may see, renew and expire it without any other permission."""
    return principal == token.owner or principal in token.renewers


@dataclass(frozen=True, slots=True)
class NewToken:
    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    lifetime_ms: int
    """The maximum; if not positive, what the settings allow."""
    needs_user: bool = False
    """Whether the requester has logged in with a password from the metadata."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The limits from the settings."""

    longest_ms: int
    """The maximum lifetime since creation; renewals cannot exceed it."""
    renewed_ms: int
    """How long it lives without a renewal."""


@dataclass(frozen=True, slots=True)
class CreatedToken:
    verdict: Verdict
    token: DelegationTokenRecord | None = None


@dataclass(frozen=True, slots=True)
class TokenTime:
    """The current expiry time of a token."""

    verdict: Verdict
    until_ms: int = NO_TIME


class WithTokens(Protocol):
    """The part of the image that this module uses, to avoid a circular import."""

    tokens: DelegationTokens
    scram: ScramCredentials


def decide_create_token(
    image: WithTokens, new_token: NewToken, lifetimes: Lifetimes, now_ms: int
) -> Decision[CreatedToken]:
    known = image.tokens.get(new_token.token_id)
    if known is not None and (known.owner, known.requester) == (new_token.owner, new_token.requester):
        return Decision((), CreatedToken(OK, known))
    if len(new_token.renewers) > RENEWERS_MAX:
        return _not_created(ErrorCode.INVALID_REQUEST, f"a token may have at most {RENEWERS_MAX} renewers")
    for principal in (new_token.owner, *new_token.renewers):
        kind, _, name = principal.partition(":")
        if kind != USER:
            return _not_created(ErrorCode.INVALID_PRINCIPAL_TYPE, "only users can own and renew tokens")
        if (fault := name_fault(name)) is not None:
            return _not_created(ErrorCode.INVALID_REQUEST, fault)
    if new_token.needs_user and not image.scram.of_user(new_token.requester.partition(":")[2]):
        # The user was removed while the request was in flight: their tokens have ended, and no other is created.
        return _not_created(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, f"{new_token.requester} no longer exists")
    if (full := _limit_reached(image.tokens, new_token)) is not None:
        return _not_created(ErrorCode.POLICY_VIOLATION, full)
    longest_ms = lifetimes.longest_ms
    if new_token.lifetime_ms > 0:
        longest_ms = min(longest_ms, new_token.lifetime_ms)
    max_timestamp = _sum(now_ms, longest_ms)
    token = DelegationTokenRecord(
        owner=new_token.owner,
        requester=new_token.requester,
        renewers=new_token.renewers,
        issue_timestamp=now_ms,
        max_timestamp=max_timestamp,
        expiration_timestamp=min(max_timestamp, _sum(now_ms, lifetimes.renewed_ms)),
        token_id=new_token.token_id,
    )
    return Decision((token,), CreatedToken(OK, token))


def _limit_reached(tokens: DelegationTokens, new_token: NewToken) -> str | None:
    added = usage_of(new_token.owner, new_token.requester, new_token.renewers)
    total, own = tokens.total.plus(added), tokens.usage(new_token.requester).plus(added)
    if total.tokens > TOKENS_MAX:
        return f"the cluster has reached its limit of {TOKENS_MAX} delegation tokens"
    if total.bytes > BYTES_MAX:
        return f"the delegation tokens of the cluster have reached their limit of {BYTES_MAX} bytes of metadata"
    if own.tokens > TOKENS_OF_ONE_MAX:
        return (
            f"{new_token.requester} has reached the limit of {TOKENS_OF_ONE_MAX} delegation tokens for one requester"
        )
    if own.bytes > BYTES_OF_ONE_MAX:
        return (
            f"the delegation tokens of {new_token.requester} have reached the limit of {BYTES_OF_ONE_MAX} bytes of "
            "metadata for one requester: name fewer renewers, or expire some tokens"
        )
    return None


def _not_created(code: ErrorCode, why: str) -> Decision[CreatedToken]:
    return Decision((), CreatedToken(Verdict(code, why)))


def decide_renew_token(
    image: WithTokens, token_id: str | None, principal: str, period_ms: int, lifetimes: Lifetimes, now_ms: int
) -> Decision[TokenTime]:
    """`token_id` is None if nothing matches the client's HMAC."""
    token = None if token_id is None else image.tokens.get(token_id)
    if token is None:
        return _refused_time(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if has_expired(token, now_ms):
        return _refused_time(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if not is_of(token, principal):
        return _refused_time(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    wanted_ms = min(lifetimes.renewed_ms, period_ms) if period_ms > 0 else lifetimes.renewed_ms
    return _lives_until(token, _sum(now_ms, wanted_ms))


def decide_expire_token(
    image: WithTokens, token_id: str | None, principal: str, period_ms: int, now_ms: int
) -> Decision[TokenTime]:
    """Set its expiry to this long from now; a negative period expires it at once."""
    token = None if token_id is None else image.tokens.get(token_id)
    if token is None:
        return _refused_time(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if not is_of(token, principal):
        return _refused_time(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if period_ms < 0:
        return Decision((RemoveDelegationTokenRecord(token.token_id),), TokenTime(OK, now_ms))
    if has_expired(token, now_ms):
        return _refused_time(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return _lives_until(token, _sum(now_ms, period_ms))


def decide_remove_expired(image: WithTokens, now_ms: int, most: int) -> Decision[Sequence[DelegationTokenRecord]]:
    """Remove expired tokens, a limited number at a time."""
    gone = [token for token in image.tokens if has_expired(token, now_ms)][:most]
    return Decision(tuple(RemoveDelegationTokenRecord(each.token_id) for each in gone), gone)


def _refused_time(code: ErrorCode) -> Decision[TokenTime]:
    return Decision((), TokenTime(Verdict(code)))


def _lives_until(token: DelegationTokenRecord, until_ms: int) -> Decision[TokenTime]:
    changed = replace(token, expiration_timestamp=min(token.max_timestamp, until_ms))
    return Decision((changed,), TokenTime(OK, changed.expiration_timestamp))


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, FOREVER_MS)
