"""Signed tokens (JWT, OAUTHBEARER): who is believed, by the keys of whoever signs them. PyJWT does the arithmetic.

Only signatures with a pair of keys count: a token that says of itself that it is not signed, or that is signed with a
password, is refused whatever the keys say. Everything here runs off the loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millpond.base.principal import USER, Principal
from millpond.broker.security.mechanisms import Authenticated, LoginRefused
from millpond.config.login import (
    OAUTH_AUDIENCE,
    OAUTH_CLOCK_SKEW_SECONDS,
    OAUTH_ISSUER,
    OAUTH_JWKS_REFRESH_MS,
    OAUTH_JWKS_URL,
    OAUTH_SUB_CLAIM,
)
from millpond.config.security import of_listener
from millpond.metadata.scram import name_fault

if TYPE_CHECKING:
    from millpond.base.settings import Settings

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
KEYS_MAX: Final = 100
KEYS_BYTES_MAX: Final = 1 << 20
AGAIN_MS: Final = 10_000
"""So soon the keys are not asked for again, whoever names one that is not among them."""


_BY_NONSENSE: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a parser that is not ours raises of what a stranger has written: JSON that is nested too deeply, an end at
infinity."""


class OauthUnavailable(Exception):
    """The settings ask for OAUTHBEARER, and it cannot be had; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What has to be in a token."""

    audience: tuple[str, ...]
    issuer: str
    skew_seconds: int
    sub_claim: str


class SignedTokens:
    """Implements `mechanisms.TokenChecker`. `read` gets the keys; it may take its time, and fail with OSError."""

    def __init__(
        self, expected: Expected, read: Callable[[], bytes], monotonic_ms: Callable[[], int], refresh_ms: int
    ) -> None:
        self._expected = expected
        self._read = read
        self._monotonic_ms = monotonic_ms
        self._refresh_ms = refresh_ms
        self._keys: dict[str | None, Any] = {}
        self._read_at_ms: int | None = None

    def check(self, token: str) -> Authenticated:
        import jwt

        expected = self._expected
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise LoginRefused(f"a token that is signed by {str(algorithm)[:32]!r}")
            key = self._key(header.get("kid"))
            if key.algorithm not in (None, algorithm):
                raise LoginRefused("a token that is signed in another way than its key is for")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=list(expected.audience) or None,
                issuer=expected.issuer or None,
                leeway=expected.skew_seconds,
                options={
                    "require": ["exp", expected.sub_claim],
                    "verify_aud": bool(expected.audience),
                    "verify_iss": bool(expected.issuer),
                    "verify_sub": False,
                },
            )
            return _believed(claims, expected)
        except (jwt.PyJWTError, *_BY_NONSENSE) as fault:
            raise LoginRefused(f"the token is not good: {type(fault).__name__}") from None

    def _key(self, key_id: object) -> _Key:
        if self._is_due(self._refresh_ms) or (key_id not in self._keys and self._is_due(AGAIN_MS)):
            self._refresh()
        key = self._keys.get(key_id if isinstance(key_id, str) else None)
        if key is None and key_id is None and len(self._keys) == 1:
            key = next(iter(self._keys.values()))
        if key is None:
            raise LoginRefused("a token that is signed with a key that is not known")
        found: _Key = key
        return found

    def _is_due(self, after_ms: int) -> bool:
        return self._read_at_ms is None or self._monotonic_ms() - self._read_at_ms >= after_ms

    def _refresh(self) -> None:
        """Keys that were once read stay good while newer ones cannot be had."""
        self._read_at_ms = self._monotonic_ms()
        try:
            self._keys = keys_in(self._read())
        except (OSError, ValueError) as fault:
            if not self._keys:
                raise LoginRefused(f"the keys of {OAUTH_JWKS_URL.name} cannot be had: {fault}") from None


@dataclass(frozen=True, slots=True)
class _Key:
    key: Any
    algorithm: str | None


def keys_in(data: bytes) -> dict[str | None, _Key]:
    """The keys of a JWKS by their ids. ValueError where it is none."""
    import jwt

    if len(data) > KEYS_BYTES_MAX:
        raise ValueError("it is too large")
    found = json.loads(data)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError("it is not a set of keys (JWKS)")
    made: dict[str | None, _Key] = {}
    for each in keys[:KEYS_MAX]:
        # A key that is not for signatures, or that who can check can sign with, is none of ours.
        if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
            continue
        try:
            made[each.get("kid")] = _Key(jwt.PyJWK.from_dict(each).key, each.get("alg"))
        except (jwt.PyJWTError, ValueError, KeyError, TypeError):
            continue
    return made


def _believed(claims: dict[str, Any], expected: Expected) -> Authenticated:
    name, until = claims.get(expected.sub_claim), claims.get("exp")
    if not isinstance(name, str) or name_fault(name) is not None:
        raise LoginRefused(f"a token without a name in {expected.sub_claim}")
    if not isinstance(until, int | float):
        raise LoginRefused("a token without an end")
    return Authenticated(Principal(USER, name), int(until * 1000) + expected.skew_seconds * 1000)


def checker_of(
    settings: Settings, listener: str, read: Callable[[str], bytes] | None, monotonic_ms: Callable[[], int]
) -> SignedTokens:
    """For one listener, by its settings. OauthUnavailable where something is missing."""
    url = of_listener(settings, listener, OAUTH_JWKS_URL)
    if not url:
        raise OauthUnavailable(f"OAUTHBEARER is enabled, and {OAUTH_JWKS_URL.name} does not say where the keys are")
    try:
        import jwt  # noqa: F401
    except ImportError:
        raise OauthUnavailable("OAUTHBEARER needs PyJWT: pip install 'millpond[oauth]'") from None
    if read is None:
        raise OauthUnavailable("OAUTHBEARER is enabled, and nothing can be fetched here")
    fetch = read
    expected = Expected(
        of_listener(settings, listener, OAUTH_AUDIENCE),
        of_listener(settings, listener, OAUTH_ISSUER),
        of_listener(settings, listener, OAUTH_CLOCK_SKEW_SECONDS),
        of_listener(settings, listener, OAUTH_SUB_CLAIM),
    )
    refresh_ms = of_listener(settings, listener, OAUTH_JWKS_REFRESH_MS)
    return SignedTokens(expected, lambda: fetch(url), monotonic_ms, refresh_ms)
