"""Producer ids come from committed blocks, each once, in request order."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.later import Later, done
from millpond.broker.coordination.producer_ids import WAIT_MS, ProducerIds
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.producer_ids import ProducerIdBlock
from millpond.sim.world.clock import VirtualClock

FAILED = ProducerIdBlock(Verdict(ErrorCode.KAFKA_STORAGE_ERROR))


class Play:
    def __init__(self, reserve: int = 0) -> None:
        self.asked: list[Later[ProducerIdBlock]] = []
        self.clock = VirtualClock()
        self.ids = ProducerIds(self.clock, self._allocate, reserve)
        self.heard: list[str] = []

    def next(self, who: str) -> None:
        self.ids.next().then(
            lambda number: self.heard.append(f"{who} {number}"), lambda _: self.heard.append(f"{who} none")
        )

    def _allocate(self) -> Later[ProducerIdBlock]:
        self.asked.append(Later())
        return self.asked[-1]

    def block(self, block: ProducerIdBlock) -> list[str]:
        """The requested block arrives; returns the ids that are handed out."""
        self.asked.pop(0).finish(block)
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
def play() -> Play:
    return Play()


def test_the_first_asks_for_a_block_and_all_who_come_meanwhile_share_it(play: Play) -> None:
    for who in "abc":
        play.next(who)
    assert (play.heard, len(play.asked)) == ([], 1)
    assert play.block(ProducerIdBlock(OK, 1000, 1000)) == ["a 1000", "b 1001", "c 1002"]
    play.next("d")
    assert (play.heard, play.asked) == (["d 1003"], [])


def test_a_used_up_block_is_followed_by_the_next(play: Play) -> None:
    play.next("a")
    play.block(ProducerIdBlock(OK, 0, 2))
    play.next("b")
    assert play.asked == []
    play.next("c")
    assert len(play.asked) == 1
    assert play.block(ProducerIdBlock(OK, 7, 2)) == ["b 1", "c 7"]


def test_more_who_wait_than_a_block_holds_wait_for_another(play: Play) -> None:
    for who in "abcde":
        play.next(who)
    assert play.block(ProducerIdBlock(OK, 0, 2)) == ["a 0", "b 1"]
    assert len(play.asked) == 1
    assert play.block(ProducerIdBlock(OK, 2, 2)) == ["c 2", "d 3"]
    assert play.block(ProducerIdBlock(OK, 4, 2)) == ["e 4"]
    assert play.asked == []


def test_a_failure_is_told_to_all_who_wait_and_not_kept(play: Play) -> None:
    play.next("a")
    play.next("b")
    assert play.block(FAILED) == ["a none", "b none"]
    play.next("c")
    assert play.block(ProducerIdBlock(OK, 5, 1)) == ["c 5"]


def test_an_allocation_may_fail_on_the_spot() -> None:
    heard: list[str] = []
    ids = ProducerIds(VirtualClock(), lambda: done(FAILED))
    for _ in range(2):
        ids.next().then(pytest.fail, lambda refused: heard.append(str(refused)))
    assert len(heard) == 2


def test_whoever_gets_an_id_may_ask_again(play: Play) -> None:
    play.ids.next().then(lambda number: play.next(f"after {number}:"))
    play.next("b")
    assert play.block(ProducerIdBlock(OK, 0, 9)) == ["after 0: 1", "b 2"]


def test_taking_an_id_that_is_not_there_fetches_it_for_the_next_time(play: Play) -> None:
    assert play.ids.take() is None
    assert play.ids.take() is None
    assert len(play.asked) == 1
    play.next("a")
    assert play.block(ProducerIdBlock(OK, 5, 3)) == ["a 5"]
    assert [play.ids.take(), play.ids.take(), play.ids.take()] == [6, 7, None]
    play.block(FAILED)
    assert play.ids.take() is None
    play.block(ProducerIdBlock(OK, 9, 1))
    assert play.ids.take() == 9


def test_a_reserve_is_fetched_before_anybody_asks() -> None:
    play = Play(reserve=2)
    play.ids.stock_up()
    play.ids.stock_up()
    assert len(play.asked) == 1
    play.next("a")
    assert play.block(ProducerIdBlock(OK, 0, 4)) == ["a 0"]
    play.next("b")
    assert (play.heard, play.asked) == (["b 1"], [])
    play.ids.stock_up()
    assert play.asked == []


def test_what_is_left_is_given_while_no_block_can_be_had() -> None:
    play = Play(reserve=2)
    play.ids.stock_up()
    play.block(ProducerIdBlock(OK, 0, 3))
    play.next("a")
    assert play.asked == []
    play.next("b")
    assert (play.heard, len(play.asked)) == (["a 0", "b 1"], 1)
    assert play.block(FAILED) == ["a 0", "b 1"]
    play.next("c")
    play.next("d")
    assert (play.heard, len(play.asked)) == (["c 2"], 1)
    assert play.block(ProducerIdBlock(OK, 7, 3)) == ["c 2", "d 7"]
    assert play.ids.is_stocked


def test_a_block_that_comes_late_is_kept_for_who_asks_again(play: Play) -> None:
    play.next("a")
    play.clock.run_for(WAIT_MS)
    play.next("b")
    assert (play.heard, len(play.asked)) == (["a none"], 1)
    assert play.block(ProducerIdBlock(OK, 0, 9)) == ["a none", "b 0"]
    play.next("a")
    assert play.heard == ["a 1"]
