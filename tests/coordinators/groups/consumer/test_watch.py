from __future__ import annotations

from millpond.coordinators.groups.consumer.watch import REJOIN, REVOCATION, SESSION, SYNC, Watch


def test_due_in_order_and_once() -> None:
    watch = Watch()
    watch.sync("m", 30)
    watch.session("m", 20)
    watch.revocation("n", 10)
    assert watch.next_ms() == 10
    assert watch.due(9) == []
    assert watch.due(20) == [(REVOCATION, "n"), (SESSION, "m")]
    assert watch.due(40) == [(SYNC, "m")]
    assert watch.next_ms() is None


def test_a_sign_of_life_moves_the_session_on() -> None:
    watch = Watch()
    watch.session("m", 20)
    watch.session("m", 50)
    assert watch.due(49) == []
    assert watch.due(50) == [(SESSION, "m")]


def test_the_first_telling_to_rejoin_counts() -> None:
    watch = Watch()
    watch.rejoin("m", 20)
    watch.rejoin("m", 50)
    assert watch.due(20) == [(REJOIN, "m")]


def test_what_was_done_in_time_is_not_due() -> None:
    watch = Watch()
    watch.revocation("m", 10)
    watch.rejoin("m", 10)
    watch.sync("m", 10)
    watch.revoked("m")
    watch.rejoined("m")
    watch.synced("m")
    watch.session("n", 10)
    watch.forget("n")
    assert watch.due(100) == []
