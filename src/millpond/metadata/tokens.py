"""Delegation tokens (KIP-48): short-lived passwords that stand for their owner, and can be taken back.

The metadata hold who owns a token and how long it lives. What proves it is worked out from its id and a secret that
only the nodes know, and is nowhere written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from millpond.base.errors import ErrorCode
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
"""To make tokens for oneself needs no right: one user must not take them all."""


class DelegationTokens:
    """All of them, by id; `replay` alone changes it."""

    def __init__(self, tokens: Mapping[str, DelegationTokenRecord] | None = None, comings: int = 0) -> None:
        self._tokens: dict[str, DelegationTokenRecord] = dict(tokens or {})
        self.comings = comings
        """Grows with every token that is new."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DelegationTokens) and self._tokens == other._tokens

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[DelegationTokenRecord]:
        return iter(self._tokens.values())

    def copy(self) -> DelegationTokens:
        return DelegationTokens(self._tokens, self.comings)

    def get(self, token_id: str) -> DelegationTokenRecord | None:
        return self._tokens.get(token_id)

    def replay(self, record: DelegationTokenRecord | RemoveDelegationTokenRecord) -> None:
        if isinstance(record, DelegationTokenRecord):
            self.comings += record.token_id not in self._tokens
            self._tokens[record.token_id] = record
        else:
            self._tokens.pop(record.token_id, None)

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
    """Until when it is good, this moment included."""
    return min(token.max_timestamp, token.expiration_timestamp)


def has_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    return end_ms(token) < now_ms


def is_of(token: DelegationTokenRecord, principal: str) -> bool:
    """Whether somebody may see, renew and end it without any other right."""
    return principal == token.owner or principal in token.renewers


@dataclass(frozen=True, slots=True)
class NewToken:
    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    lifetime_ms: int
    """At most; not positive for as long as the settings allow."""
    needs_user: bool = False
    """Whether the requester has logged in with a password that the metadata know."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """What the settings allow."""

    longest_ms: int
    """From the making of a token; no renewal goes beyond."""
    renewed_ms: int
    """How long it lives without being renewed."""


@dataclass(frozen=True, slots=True)
class CreatedToken:
    verdict: Verdict
    token: DelegationTokenRecord | None = None


@dataclass(frozen=True, slots=True)
class TokenTime:
    """Until when a token lives now."""

    verdict: Verdict
    until_ms: int = NO_TIME


class WithTokens(Protocol):
    """The image, as far as this file knows it: it is the image that knows this file."""

    tokens: DelegationTokens
    scram: ScramCredentials


def decide_create_token(
    image: WithTokens, wanted: NewToken, lifetimes: Lifetimes, now_ms: int
) -> Decision[CreatedToken]:
    if len(wanted.renewers) > RENEWERS_MAX:
        return _not_created(ErrorCode.INVALID_REQUEST, f"a token can have {RENEWERS_MAX} renewers at most")
    for principal in (wanted.owner, *wanted.renewers):
        kind, _, name = principal.partition(":")
        if kind != USER:
            return _not_created(ErrorCode.INVALID_PRINCIPAL_TYPE, "only users can own and renew tokens")
        if (fault := name_fault(name)) is not None:
            return _not_created(ErrorCode.INVALID_REQUEST, fault)
    if wanted.needs_user and not image.scram.of_user(wanted.requester.partition(":")[2]):
        # Removed while the request was on its way: the tokens that they had have ended, and no other comes.
        return _not_created(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, f"{wanted.requester} is no user any more")
    if len(image.tokens) >= TOKENS_MAX:
        return _not_created(ErrorCode.POLICY_VIOLATION, f"there are {TOKENS_MAX} tokens, the most there can be")
    if sum(each.requester == wanted.requester for each in image.tokens) >= TOKENS_OF_ONE_MAX:
        return _not_created(
            ErrorCode.POLICY_VIOLATION,
            f"{wanted.requester} has made {TOKENS_OF_ONE_MAX} tokens that live, the most there can be of one",
        )
    longest_ms = lifetimes.longest_ms
    if wanted.lifetime_ms > 0:
        longest_ms = min(longest_ms, wanted.lifetime_ms)
    max_timestamp = _sum(now_ms, longest_ms)
    token = DelegationTokenRecord(
        owner=wanted.owner,
        requester=wanted.requester,
        renewers=wanted.renewers,
        issue_timestamp=now_ms,
        max_timestamp=max_timestamp,
        expiration_timestamp=min(max_timestamp, _sum(now_ms, lifetimes.renewed_ms)),
        token_id=wanted.token_id,
    )
    return Decision((token,), CreatedToken(OK, token))


def _not_created(code: ErrorCode, why: str) -> Decision[CreatedToken]:
    return Decision((), CreatedToken(Verdict(code, why)))


def decide_renew_token(
    image: WithTokens, token_id: str | None, principal: str, period_ms: int, lifetimes: Lifetimes, now_ms: int
) -> Decision[TokenTime]:
    """`token_id` is None where nothing matches what the client has shown."""
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
    """Let it live for so long from now on; a negative period ends it at once."""
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
    """Forget tokens that have had their time, so many of them at a time."""
    gone = [token for token in image.tokens if has_expired(token, now_ms)][:most]
    return Decision(tuple(RemoveDelegationTokenRecord(each.token_id) for each in gone), gone)


def _refused_time(code: ErrorCode) -> Decision[TokenTime]:
    return Decision((), TokenTime(Verdict(code)))


def _lives_until(token: DelegationTokenRecord, until_ms: int) -> Decision[TokenTime]:
    changed = replace(token, expiration_timestamp=min(token.max_timestamp, until_ms))
    return Decision((changed,), TokenTime(OK, changed.expiration_timestamp))


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, FOREVER_MS)
