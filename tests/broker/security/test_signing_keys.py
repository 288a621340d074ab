"""Keys from an external provider: which logins wait for them, which do not, and how often they are fetched."""

from __future__ import annotations

import pytest

from millpond.base.later import Later
from millpond.broker.security.signing_keys import (
    AGAIN_MS,
    FAILED_MS_MAX,
    FAILED_MS_MIN,
    WAIT_MS_MAX,
    Key,
    Keys,
    SigningKeys,
)
from millpond.sim.world.clock import VirtualClock

OLD, NEW = Key("old", None), Key("new", None)
REFRESH_MS = 3_600_000


class KeySource:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.fetches: list[Later[Keys]] = []
        """Fetches that have started and not finished."""
        self.begun_ms: list[int] = []
        self.notes: list[str] = []
        self.keys = SigningKeys(self._fetch, self.clock, REFRESH_MS, lambda fault: self.notes.append(str(fault)))

    def _fetch(self) -> Later[Keys]:
        self.begun_ms.append(self.clock.monotonic_ms())
        later: Later[Keys] = Later()
        self.fetches.append(later)
        return later

    def find(self, key_id: object) -> list[object]:
        replies: list[object] = []
        self.keys.find(key_id).then(replies.append, lambda failure: replies.append(str(failure)))
        return replies

    def come(self, **keys: Key) -> None:
        self.fetches.pop(0).finish(keys)

    def fail(self, why: str = "no way there") -> None:
        self.fetches.pop(0).fail(OSError(why))

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.run_for(duration_ms)


def test_the_first_wait_for_one_fetch_together() -> None:
    source = KeySource()
    first, second, stranger = source.find("a"), source.find("a"), source.find("z")
    assert (first, len(source.fetches)) == ([], 1)
    source.come(a=OLD)
    assert (first, second) == ([OLD], [OLD])
    assert stranger == ["a token that is signed with a key that is not known"]
    assert source.find("a") == [OLD]
    assert len(source.begun_ms) == 1


def test_who_names_unknown_keys_asks_for_them_seldom() -> None:
    source = KeySource()
    source.find("a")
    source.come(a=OLD)
    for _ in range(5):
        assert source.find("new") == ["a token that is signed with a key that is not known"]
    source.pass_ms(AGAIN_MS)
    waits = source.find("new")
    assert source.find("a") == [OLD], "whose key is known does not wait for it"
    source.come(a=OLD, new=NEW)
    assert waits == [NEW]
    assert source.begun_ms == [0, AGAIN_MS]


def test_old_keys_stay_good_while_new_ones_cannot_be_had() -> None:
    source = KeySource()
    source.find("a")
    source.come(a=OLD)
    source.pass_ms(REFRESH_MS)
    assert source.find("a") == [OLD]
    assert len(source.fetches) == 1, "they are asked for behind his back"
    assert source.find("a") == [OLD]
    source.fail()
    assert source.find("a") == [OLD]
    assert source.notes == ["no way there"]
    source.pass_ms(FAILED_MS_MIN)
    assert source.find("a") == [OLD]
    source.come(new=NEW)
    assert source.notes == ["no way there", "None"]
    assert source.find("a") == ["a token that is signed with a key that is not known"], "it was taken back"


def test_a_hanging_fetch_of_keys_delays_logins_briefly_and_is_the_only_one() -> None:
    source = KeySource()
    waits = source.find("a")
    source.pass_ms(WAIT_MS_MAX)
    assert waits == ["the keys did not come in time"]
    for _ in range(100):
        source.find("a")
        source.pass_ms(1_000)
    assert len(source.begun_ms) == 1
    late = source.find("a")
    source.come(a=OLD)
    assert late == [OLD]


def test_after_failures_it_is_asked_for_less_and_less() -> None:
    source = KeySource()
    for _ in range(600):
        assert source.find("a") in (
            [],
            ["the keys of sasl.oauthbearer.jwks.endpoint.url cannot be had: no way there"],
        )
        if source.fetches:
            source.fail()
        source.pass_ms(500)
    gaps = [after - before for before, after in zip(source.begun_ms, source.begun_ms[1:], strict=False)]
    assert gaps[:4] == [FAILED_MS_MIN, 2 * FAILED_MS_MIN, 4 * FAILED_MS_MIN, 8 * FAILED_MS_MIN]
    assert gaps[-1] == FAILED_MS_MAX
    assert source.notes == ["no way there"], "once is enough"


def test_closed_connections_are_forgotten() -> None:
    source = KeySource()
    for _ in range(1_000):
        source.keys.find("a").cancel()
    assert not source.keys._waiting
    source.come(a=OLD)


def test_a_token_that_names_no_key_has_the_only_one_there_is() -> None:
    source = KeySource()
    source.find("a")
    source.come(a=OLD)
    assert source.find(None) == [OLD]
    source.pass_ms(REFRESH_MS)
    source.find("a")
    source.come(a=OLD, b=NEW)
    assert source.find(None) == ["a token that is signed with a key that is not known"]
    assert source.find(7) == ["a token that is signed with a key that is not known"]


def test_a_bug_is_not_taken_for_a_failure() -> None:
    source = KeySource()
    source.find("a")
    with pytest.raises(AssertionError):
        source.fetches.pop(0).fail(AssertionError("a bug"))
