"""Which requests are allowed at which stage of a connection that has to authenticate."""

from __future__ import annotations

import pytest

from millpond.base.principal import Principal
from millpond.broker.security.login import ALLOWED, Event, IllegalLoginState, Login, State
from millpond.broker.security.mechanisms import Answer, Authenticated, LoginRefused, Said

ALICE = Authenticated(Principal("User", "alice"))
BOB = Authenticated(Principal("User", "bob"))


class Echo:
    def answer(self, heard: bytes) -> Answer:
        return Said(heard)


def new() -> Login:
    return Login({"A": Echo, "B": Echo})


def test_from_the_first_word_to_the_session_and_again() -> None:
    login = new()
    login.begin("A", is_raw=False)
    assert login.hear(b"1") == Said(b"1")
    login.go_on()
    login.hear(b"2")
    login.let_in(ALICE)
    assert (login.state, login.was) == (State.IN, ALICE)
    login.begin("A", is_raw=False)
    login.hear(b"1")
    login.let_in(ALICE)


def test_one_logs_in_again_as_the_same_and_in_the_same_way() -> None:
    login = new()
    login.begin("A", is_raw=False)
    login.hear(b"1")
    login.let_in(ALICE)
    login.begin("A", is_raw=False)
    login.hear(b"1")
    with pytest.raises(LoginRefused, match="User:bob where User:alice"):
        login.let_in(BOB)
    other = new()
    other.begin("A", is_raw=False)
    other.hear(b"1")
    other.let_in(ALICE)
    with pytest.raises(LoginRefused, match="B where A was used"):
        other.begin("B", is_raw=False)


def test_what_cannot_come_now_ends_it() -> None:
    login = new()
    with pytest.raises(IllegalLoginState, match="SaslAuthenticate where nothing was said yet"):
        login.hear(b"1")
    login.begin("A", is_raw=True)
    assert login.takes_raw
    with pytest.raises(IllegalLoginState):
        login.begin("A", is_raw=False)
    login.hear(b"1")
    with pytest.raises(IllegalLoginState, match="is being checked"):
        login.hear(b"2")
    login.give_up()
    for step in (lambda: login.begin("A", is_raw=False), lambda: login.hear(b""), lambda: login.let_in(ALICE)):
        with pytest.raises(IllegalLoginState, match="refused"):
            step()
    assert not login.takes_raw


def test_a_mechanism_that_is_not_offered_is_refused() -> None:
    with pytest.raises(LoginRefused, match="'GSSAPI' is not enabled"):
        new().begin("GSSAPI", is_raw=False)


def test_a_refused_login_stays_refused() -> None:
    assert ALLOWED[State.OVER] == {}
    assert all(
        after is State.OVER for moves in ALLOWED.values() for event, after in moves.items() if event is Event.FAILED
    )
    assert [state for state, moves in ALLOWED.items() if Event.PASSED in moves] == [State.CHECKING]
