"""Producer ids from committed blocks: never twice, and nobody waits longer than for one block."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.producer_ids import ProducerIds
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.producer_ids import ProducerIdBlock


class Play:
    def __init__(self) -> None:
        self.asked: list = []
        self.heard: list[int | None] = []
        self.ids = ProducerIds(self.asked.append)

    def ask(self, count: int = 1) -> None:
        for _ in range(count):
            self.ids.next(self.heard.append)

    def grant(self, first: int, count: int) -> None:
        self.asked.pop(0)(ProducerIdBlock(OK, first, count))


@pytest.fixture
def play() -> Play:
    return Play()


def test_the_first_waits_for_a_block_and_the_next_do_not(play: Play) -> None:
    play.ask()
    assert play.heard == []
    play.grant(1000, 3)
    play.ask(2)
    assert play.heard == [1000, 1001, 1002]
    assert play.asked == []


def test_all_who_wait_share_one_question_and_a_small_block_leads_to_another(play: Play) -> None:
    play.ask(3)
    assert len(play.asked) == 1
    play.grant(0, 2)
    assert play.heard == [0, 1]
    assert len(play.asked) == 1
    play.grant(1000, 2)
    assert play.heard == [0, 1, 1000]


def test_a_refused_block_is_told_to_all_who_wait_and_the_next_asks_again(play: Play) -> None:
    play.ask(2)
    play.asked.pop(0)(ProducerIdBlock(Verdict(ErrorCode.KAFKA_STORAGE_ERROR)))
    assert play.heard == [None, None]
    play.ask()
    play.grant(5, 1)
    assert play.heard == [None, None, 5]


def test_ids_are_not_given_twice_across_a_crash(desk) -> None:
    heard: list[int | None] = []
    for _ in range(3):
        desk.broker.producer_ids.next(heard.append)
        desk.sim.run_until(lambda: desk.broker.controller.is_idle(), within_ms=1000)
        desk.sim.run_for(100)
        desk.node.restart()
    assert len(heard) == 3
    assert len(set(heard)) == 3
