"""The token issuer's signing keys (JWKS): fetched when a token arrives, one fetch at a time, and cached.

Runs on the loop. The JWKS server may be slow or down: cached keys stay valid while newer ones cannot be fetched,
fetches are at least a second apart, and only logins whose key is unknown wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millpond.base.later import Later, done, failed
from millpond.base.values import dataclass
from millpond.broker.security.mechanisms import LoginRefused
from millpond.config.login import OAUTH_JWKS_URL

if TYPE_CHECKING:
    from millpond.base.ports import Clock

KEYS_MAX: Final = 100
KEYS_BYTES_MAX: Final = 1 << 20

AGAIN_MS: Final = 10_000
"""The least time from a successful fetch to the next, even if a token names an unknown key."""

FAILED_MS_MIN: Final = 1_000
FAILED_MS_MAX: Final = 60_000
"""The backoff after a failed fetch; it doubles with each further failure."""

WAIT_MS_MAX: Final = 5_000
"""How long a login waits for keys before it is refused; the client may retry."""


@dataclass(frozen=True, slots=True)
class Key:
    key: Any
    algorithm: str | None
    """The only algorithm that the key may be used with; None for any that suits its type."""


Keys: TypeAlias = Mapping[str | None, Key]


class SigningKeys:
    def __init__(
        self,
        fetch: Callable[[], Later[Keys]],
        clock: Clock,
        refresh_ms: int,
        note: Callable[[Exception | None], None] = lambda _: None,
    ) -> None:
        """`fetch` fails with OSError or ValueError. `note` is called with the first failure, and with None once a
        fetch succeeds again."""
        self._fetch = fetch
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._note = note
        self._keys: Keys = {}
        self._had_ms: int | None = None
        """When keys were last fetched successfully."""
        self._not_before_ms = 0
        self._failures = 0
        self._failure: Exception | None = None
        """The error of the last fetch, if it failed."""
        self._is_fetching = False
        self._waiting: dict[int, tuple[object, Later[Key]]] = {}
        self._numbers = 0

    def find(self, key_id: object) -> Later[Key]:
        """The key with this id; None finds a key without an id, or the only one. LoginRefused when there is no such
        key or the keys cannot be fetched."""
        found = self._known(key_id)
        now_ms = self._clock.monotonic_ms()
        is_old = self._had_ms is None or now_ms - self._had_ms >= self._refresh_ms
        if (found is None or is_old) and not self._is_fetching and now_ms >= self._not_before_ms:
            self._begin()
            found = found or self._known(key_id)
        if found is not None:
            return done(found)
        return self._wait(key_id) if self._is_fetching else failed(self._refusal())

    def _known(self, key_id: object) -> Key | None:
        if key_id is None and None not in self._keys and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id) if key_id is None or isinstance(key_id, str) else None

    def _wait(self, key_id: object) -> Later[Key]:
        self._numbers += 1
        number = self._numbers
        waits: Later[Key] = Later(lambda: self._forget(number))
        self._waiting[number] = key_id, waits
        waits.expire_after(
            self._clock, WAIT_MS_MAX, lambda: waits.fail(LoginRefused("the keys did not come in time"))
        )
        return waits

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _refusal(self) -> LoginRefused:
        if self._had_ms is None:
            return LoginRefused(f"the keys of {OAUTH_JWKS_URL.name} cannot be had: {self._failure}")
        return LoginRefused("a token that is signed with a key that is not known")

    # The fetch.

    def _begin(self) -> None:
        self._is_fetching = True
        self._fetch().then(self._take, self._fail)

    def _take(self, keys: Keys) -> None:
        now_ms = self._clock.monotonic_ms()
        self._keys, self._had_ms, self._not_before_ms = keys, now_ms, now_ms + AGAIN_MS
        if self._failures:
            self._failures, self._failure = 0, None
            self._note(None)
        self._end()

    def _fail(self, failure: Exception) -> None:
        if not isinstance(failure, OSError | ValueError):
            raise failure
        delay_ms = min(FAILED_MS_MIN << min(self._failures, 10), FAILED_MS_MAX)
        self._not_before_ms = self._clock.monotonic_ms() + delay_ms
        self._failures, self._failure = self._failures + 1, failure
        if self._failures == 1:
            self._note(failure)
        self._end()

    def _end(self) -> None:
        self._is_fetching = False
        for key_id, waits in list(self._waiting.values()):
            found = self._known(key_id)
            if found is None:
                waits.fail(self._refusal())
            else:
                waits.finish(found)


def keys_in(data: bytes) -> Keys:
    """The keys of a JWKS by id. ValueError if it is not a JWKS."""
    import jwt

    if len(data) > KEYS_BYTES_MAX:
        raise ValueError("it is too large")
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError("it is not a set of keys (JWKS)")
    made: dict[str | None, Key] = {}
    for each in keys[:KEYS_MAX]:
        # Skip keys that are not for signatures, and symmetric ones: with those, any verifier could sign.
        if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
            continue
        try:
            made[each.get("kid")] = Key(jwt.PyJWK.from_dict(each).key, each.get("alg"))
        except (jwt.PyJWTError, ValueError, KeyError, TypeError):
            continue
    return made
