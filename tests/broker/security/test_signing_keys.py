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


class Play:
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
        heard: list[object] = []
        self.keys.find(key_id).then(heard.append, lambda failure: heard.append(str(failure)))
        return heard

    def come(self, **keys: Key) -> None:
        self.fetches.pop(0).finish(keys)

    def fail(self, why: str = "no way there") -> None:
        self.fetches.pop(0).fail(OSError(why))

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.run_for(duration_ms)


def test_the_first_wait_for_one_fetch_together() -> None:
    play = Play()
    first, second, stranger = play.find("a"), play.find("a"), play.find("z")
    assert (first, len(play.fetches)) == ([], 1)
    play.come(a=OLD)
    assert (first, second) == ([OLD], [OLD])
    assert stranger == ["a token that is signed with a key that is not known"]
    assert play.find("a") == [OLD]
    assert len(play.begun_ms) == 1


def test_who_names_unknown_keys_asks_for_them_seldom() -> None:
    play = Play()
    play.find("a")
    play.come(a=OLD)
    for _ in range(5):
        assert play.find("new") == ["a token that is signed with a key that is not known"]
    play.pass_ms(AGAIN_MS)
    waits = play.find("new")
    assert play.find("a") == [OLD], "whose key is known does not wait for it"
    play.come(a=OLD, new=NEW)
    assert waits == [NEW]
    assert play.begun_ms == [0, AGAIN_MS]


def test_old_keys_stay_good_while_new_ones_cannot_be_had() -> None:
    play = Play()
    play.find("a")
    play.come(a=OLD)
    play.pass_ms(REFRESH_MS)
    assert play.find("a") == [OLD]
    assert len(play.fetches) == 1, "they are asked for behind his back"
    assert play.find("a") == [OLD]
    play.fail()
    assert play.find("a") == [OLD]
    assert play.notes == ["no way there"]
    play.pass_ms(FAILED_MS_MIN)
    assert play.find("a") == [OLD]
    play.come(new=NEW)
    assert play.notes == ["no way there", "None"]
    assert play.find("a") == ["a token that is signed with a key that is not known"], "it was taken back"


def test_a_fetch_that_does_not_end_holds_nobody_for_long_and_is_the_only_one() -> None:
    play = Play()
    waits = play.find("a")
    play.pass_ms(WAIT_MS_MAX)
    assert waits == ["the keys did not come in time"]
    for _ in range(100):
        play.find("a")
        play.pass_ms(1_000)
    assert len(play.begun_ms) == 1
    late = play.find("a")
    play.come(a=OLD)
    assert late == [OLD]


def test_after_failures_it_is_asked_for_less_and_less() -> None:
    play = Play()
    for _ in range(600):
        assert play.find("a") in ([], ["the keys of sasl.oauthbearer.jwks.endpoint.url cannot be had: no way there"])
        if play.fetches:
            play.fail()
        play.pass_ms(500)
    gaps = [after - before for before, after in zip(play.begun_ms, play.begun_ms[1:], strict=False)]
    assert gaps[:4] == [FAILED_MS_MIN, 2 * FAILED_MS_MIN, 4 * FAILED_MS_MIN, 8 * FAILED_MS_MIN]
    assert gaps[-1] == FAILED_MS_MAX
    assert play.notes == ["no way there"], "once is enough"


def test_whoever_has_left_is_not_remembered() -> None:
    play = Play()
    for _ in range(1_000):
        play.keys.find("a").cancel()
    assert not play.keys._waiting
    play.come(a=OLD)


def test_a_token_that_names_no_key_has_the_only_one_there_is() -> None:
    play = Play()
    play.find("a")
    play.come(a=OLD)
    assert play.find(None) == [OLD]
    play.pass_ms(REFRESH_MS)
    play.find("a")
    play.come(a=OLD, b=NEW)
    assert play.find(None) == ["a token that is signed with a key that is not known"]
    assert play.find(7) == ["a token that is signed with a key that is not known"]


def test_a_bug_is_not_taken_for_a_failure() -> None:
    play = Play()
    play.find("a")
    with pytest.raises(AssertionError):
        play.fetches.pop(0).fail(AssertionError("a bug"))
