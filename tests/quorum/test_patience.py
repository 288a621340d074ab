"""How long a replica waits for others, as elections come to something or to nothing."""

from __future__ import annotations

from millpond.quorum.patience import Patience, Timing

TIMING = Timing(election_ms=500, fetch_ms=1500, retry_ms=100, backoff_ms_max=1000)


class Lowest:
    def below(self, bound: int) -> int:
        return 0


class Highest:
    def below(self, bound: int) -> int:
        return bound - 1


def test_the_first_election_after_a_quiet_time_is_quick() -> None:
    patience = Patience(TIMING, Lowest())
    patience.on_epoch()
    assert patience.for_election_ms() == 500
    assert patience.with_leader_ms() == 1500
    assert patience.check_quorum_ms == 2250
    assert (patience.answer_ms(is_fetch=False), patience.answer_ms(is_fetch=True)) == (500, 1500)


def test_each_further_epoch_without_a_leader_that_stays_doubles_what_is_waited() -> None:
    patience = Patience(TIMING, Lowest())
    waits = []
    for _ in range(6):
        patience.on_epoch()
        patience.on_leader()
        waits.append((patience.for_election_ms(), patience.with_leader_ms(), patience.answer_ms(is_fetch=False)))
    assert waits == [
        (500, 1500, 500),
        (1000, 3000, 1000),
        (2000, 6000, 2000),
        (4000, 6000, 2000),
        (4000, 6000, 2000),
        (4000, 6000, 2000),
    ]
    assert patience.for_pre_vote_ms() == 500, "asking whether one would be elected disturbs nobody"


def test_a_leader_is_always_waited_for_longer_by_itself_than_by_its_followers() -> None:
    patience = Patience(TIMING, Highest())
    for _ in range(5):
        patience.on_epoch()
        assert patience.doubt_ms < patience.with_leader_ms() < patience.check_quorum_ms


def test_a_leader_that_is_heard_for_long_makes_it_quick_again() -> None:
    patience = Patience(TIMING, Lowest())
    for _ in range(3):
        patience.on_epoch()
    patience.on_leader()
    waits = []
    for now_ms in range(0, 9_000, 1_500):
        patience.on_heard(now_ms)
        waits.append(patience.with_leader_ms())
    assert waits == [6000, 6000, 3000, 3000, 1500, 1500]
    patience.on_epoch()
    assert patience.for_election_ms() == 500


def test_a_leader_that_comes_and_goes_does_not() -> None:
    patience = Patience(TIMING, Lowest())
    patience.on_epoch()
    for epoch in range(2):
        patience.on_epoch()
        patience.on_leader()
        patience.on_heard(epoch * 2_000)
        patience.on_heard(epoch * 2_000 + 1_000)
    assert patience.for_election_ms() == 2000


def test_answers_are_waited_for_longer_when_none_come() -> None:
    patience = Patience(TIMING, Lowest())
    waits = []
    for _ in range(4):
        waits.append(patience.answer_ms(is_fetch=False))
        patience.on_silence()
    assert waits == [500, 1000, 2000, 2000]
    assert patience.for_election_ms() == 500, "a replica that returns hears of it as soon as before"
    patience.on_leader()
    assert patience.answer_ms(is_fetch=False) == 500


def test_rivals_part_further_after_each_lost_round() -> None:
    patience = Patience(TIMING, Highest())
    assert [patience.backoff_ms() for _ in range(4)] == [299, 499, 899, 1000]
    patience.on_epoch()
    patience.on_epoch()
    assert patience.backoff_ms() == 2000
    patience.on_leader()
    assert patience.backoff_ms() == 499
