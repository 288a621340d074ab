"""Validation of signed tokens (JWT, OAUTHBEARER) against the issuer's keys. PyJWT does the cryptography.

Only asymmetric signatures are accepted: an unsigned token, or one signed with a shared secret, is refused whatever
the keys say. Once the key is available, the check is pure computation and runs off the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.later import Later, failed
from millpond.base.principal import USER, Principal
from millpond.base.values import dataclass
from millpond.broker.security.mechanisms import Authenticated, LoginRefused
from millpond.broker.security.signing_keys import Key, Keys, SigningKeys, keys_in
from millpond.config.login import (
    INTER_BROKER_USERNAME,
    OAUTH_AUDIENCE,
    OAUTH_CLOCK_SKEW_SECONDS,
    OAUTH_ISSUER,
    OAUTH_JWKS_REFRESH_MS,
    OAUTH_JWKS_URL,
    OAUTH_SUB_CLAIM,
    OAUTH_SUPER_USERS,
    OAUTH_UNRESTRICTED,
)
from millpond.config.security import of_listener, super_users
from millpond.metadata.scram import name_fault

if TYPE_CHECKING:
    from millpond.base.ports import World
    from millpond.base.settings import Settings
    from millpond.broker.loop.journal import Journal

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)

_BY_NONSENSE: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a third-party parser may raise on hostile input, such as deeply nested JSON or an infinite expiry."""


class OauthUnavailable(Exception):
    """OAUTHBEARER is enabled but unavailable; the text says how to fix that."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The claims that a token must have."""

    audience: tuple[str, ...]
    issuer: str
    skew_seconds: int
    sub_claim: str
    reserved: frozenset[str] = frozenset()
    """Names that no token may claim: super users and the node user. The issuer does not know about them."""


class SignedTokens:
    """Implements `mechanisms.TokenChecker`."""

    def __init__(self, expected: Expected, keys: SigningKeys) -> None:
        self._expected = expected
        self._keys = keys

    def begin(self, token: str) -> Later[Callable[[], Authenticated]]:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            is_known = algorithm in ALGORITHMS
        except (jwt.PyJWTError, *_BY_NONSENSE) as fault:
            return failed(_not_good(fault))
        if not is_known:
            return failed(LoginRefused(f"a token that is signed by {str(algorithm)[:32]!r}"))
        return self._keys.find(key_id).map(lambda key: partial(self._check, token, str(algorithm), key))

    def _check(self, token: str, algorithm: str, key: Key) -> Authenticated:
        """Runs off the loop; computes only and never blocks."""
        import jwt

        expected = self._expected
        if key.algorithm not in (None, algorithm):
            raise LoginRefused("a token that is signed in another way than its key is for")
        try:
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
            raise _not_good(fault) from None


def _not_good(fault: Exception) -> LoginRefused:
    return LoginRefused(f"the token is not good: {type(fault).__name__}")


def _believed(claims: dict[str, Any], expected: Expected) -> Authenticated:
    name, until = claims.get(expected.sub_claim), claims.get("exp")
    if not isinstance(name, str) or name_fault(name) is not None:
        raise LoginRefused(f"a token without a name in {expected.sub_claim}")
    if not isinstance(until, int | float):
        raise LoginRefused("a token without an end")
    if name in expected.reserved:
        raise LoginRefused("the token names a super user or the user of the nodes", name)
    return Authenticated(Principal(USER, name), int(until * 1000) + expected.skew_seconds * 1000)


def checker_of(settings: Settings, listener: str, world: World, journal: Journal) -> SignedTokens:
    """The token checker of one listener. OauthUnavailable when a setting or a dependency is missing."""
    url = of_listener(settings, listener, OAUTH_JWKS_URL)
    if not url:
        raise OauthUnavailable(f"OAUTHBEARER is enabled, and {OAUTH_JWKS_URL.name} does not say where the keys are")
    try:
        import jwt  # noqa: F401
    except ImportError:
        raise OauthUnavailable("OAUTHBEARER needs PyJWT: pip install 'millpond[oauth]'") from None
    _check_restricted(settings, listener)
    if world.fetch is None:
        raise OauthUnavailable("OAUTHBEARER is enabled, and nothing can be fetched here")
    fetch = world.fetch

    def keys() -> Later[Keys]:
        return fetch(url).chain(lambda data: world.workers.run(lambda: keys_in(data)))

    def note(fault: Exception | None) -> None:
        if fault is None:
            journal("the keys of signed tokens are there again", listener=listener)
        else:
            journal("the keys of signed tokens cannot be had", listener=listener, reason=fault)

    expected = Expected(
        of_listener(settings, listener, OAUTH_AUDIENCE),
        of_listener(settings, listener, OAUTH_ISSUER),
        of_listener(settings, listener, OAUTH_CLOCK_SKEW_SECONDS),
        of_listener(settings, listener, OAUTH_SUB_CLAIM),
        _reserved_names(settings, listener),
    )
    refresh_ms = of_listener(settings, listener, OAUTH_JWKS_REFRESH_MS)
    return SignedTokens(expected, SigningKeys(keys, world.clock, refresh_ms, note))


def _check_restricted(settings: Settings, listener: str) -> None:
    """OauthUnavailable if tokens for other services, or from other issuers with the same keys, would be accepted."""
    if of_listener(settings, listener, OAUTH_UNRESTRICTED):
        return
    missing = [] if of_listener(settings, listener, OAUTH_AUDIENCE) else [OAUTH_AUDIENCE.name]
    if not of_listener(settings, listener, OAUTH_ISSUER):
        missing.append(OAUTH_ISSUER.name)
    if missing:
        raise OauthUnavailable(
            f"OAUTHBEARER is enabled without {' and '.join(missing)}, so tokens meant for other services would log "
            f"in here. Set {'both' if len(missing) > 1 else 'it'}, or {OAUTH_UNRESTRICTED.name}=true to allow that"
        )


def _reserved_names(settings: Settings, listener: str) -> frozenset[str]:
    node_user = settings[INTER_BROKER_USERNAME]
    reserved = {node_user} if node_user else set()
    if not of_listener(settings, listener, OAUTH_SUPER_USERS):
        reserved |= {each.name for each in super_users(settings) if each.kind == USER}
    return frozenset(reserved)
