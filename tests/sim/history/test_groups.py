"""The history of groups finds what is impossible, and nothing else."""

from __future__ import annotations

from millpond.sim.history.groups import CoordinationHistory, Fate


def both() -> frozenset[int]:
    return frozenset({0, 1})


def test_two_owners_in_one_generation_are_found() -> None:
    history = CoordinationHistory()
    history.share(1, 7, "a", frozenset({0}))
    history.share(2, 7, "b", frozenset({1}))
    history.share(3, 8, "b", both())
    assert history.violations == []
    history.share(4, 7, "c", frozenset({1}))
    assert len(history.violations) == 1


def test_a_generation_that_changes_its_mind_is_found() -> None:
    history = CoordinationHistory()
    history.share(1, 7, "a", frozenset({0}))
    history.share(2, 7, "a", frozenset({1}))
    assert len(history.violations) == 1


def test_no_partition_is_assigned_while_another_member_owns_it() -> None:
    history = CoordinationHistory()
    history.hold(0, "a", both(), until_ms=100)
    history.hold(150, "b", both(), until_ms=250)
    history.let_go(160, "b")
    history.hold(170, "c", both(), until_ms=300)
    assert history.violations == []
    history.renew("c", 400)
    history.hold(350, "d", frozenset({1}), until_ms=500)
    assert len(history.violations) == 1


def test_old_news_gives_nothing() -> None:
    history = CoordinationHistory()
    history.hold(0, "a", both(), until_ms=1_000)
    history.hold(500, "sleeper", both(), until_ms=100)
    assert history.violations == []


def commit(history: CoordinationHistory, generation: int, offset: int, fate: Fate, now_ms: int) -> None:
    (asked,) = history.request_commit("m", generation, {0: offset})
    if fate is not Fate.OPEN:
        history.settle(now_ms, asked, fate)


def test_an_acknowledged_offset_does_not_fall() -> None:
    history = CoordinationHistory()
    commit(history, 1, 5, Fate.DONE, 10)
    commit(history, 1, 8, Fate.DONE, 20)
    history.check_offset(30, 15, "x", 0, 5)
    assert history.violations == []
    history.check_offset(30, 25, "x", 0, 5)
    assert len(history.violations) == 1


def test_a_lost_commit_may_come_late_but_not_in_a_later_generation() -> None:
    history = CoordinationHistory()
    commit(history, 1, 5, Fate.OPEN, 0)
    commit(history, 1, 8, Fate.DONE, 20)
    history.check_offset(40, 30, "x", 0, 5)
    assert history.violations == []
    commit(history, 2, 9, Fate.DONE, 50)
    history.check_offset(70, 60, "x", 0, 5)
    assert len(history.violations) == 1


def test_an_offset_that_was_never_committed_is_found() -> None:
    history = CoordinationHistory()
    history.check_offset(5, 5, "x", 0, -1)
    commit(history, 1, 5, Fate.REFUSED, 10)
    assert history.violations == []
    history.check_offset(20, 20, "x", 0, 5)
    assert len(history.violations) == 1


def test_offsets_of_a_transaction_count_from_its_commit_on() -> None:
    history = CoordinationHistory()
    transaction = history.begin("t")
    transaction.offsets[0] = 5
    history.check_pending_offset(1, "x", 0, -1)
    assert history.violations == []
    history.check_pending_offset(1, "x", 0, 5)
    assert len(history.violations) == 1
    history.request_commit_of(2, transaction)
    history.check_stable_offset(3, 3, "x", 0, -1)
    history.check_pending_offset(3, "x", 0, 5)
    history.ended(4, transaction, Fate.DONE)
    history.check_stable_offset(6, 5, "x", 0, 5)
    assert len(history.violations) == 1
    history.check_stable_offset(8, 7, "x", 0, -1)
    assert len(history.violations) == 2
