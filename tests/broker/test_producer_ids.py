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


class IdRequests:
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
def requests() -> IdRequests:
    return IdRequests()


def test_the_first_asks_for_a_block_and_all_who_come_meanwhile_share_it(requests: IdRequests) -> None:
    for who in "abc":
        requests.next(who)
    assert (requests.heard, len(requests.asked)) == ([], 1)
    assert requests.block(ProducerIdBlock(OK, 1000, 1000)) == ["a 1000", "b 1001", "c 1002"]
    requests.next("d")
    assert (requests.heard, requests.asked) == (["d 1003"], [])


def test_a_used_up_block_is_followed_by_the_next(requests: IdRequests) -> None:
    requests.next("a")
    requests.block(ProducerIdBlock(OK, 0, 2))
    requests.next("b")
    assert requests.asked == []
    requests.next("c")
    assert len(requests.asked) == 1
    assert requests.block(ProducerIdBlock(OK, 7, 2)) == ["b 1", "c 7"]


def test_more_who_wait_than_a_block_holds_wait_for_another(requests: IdRequests) -> None:
    for who in "abcde":
        requests.next(who)
    assert requests.block(ProducerIdBlock(OK, 0, 2)) == ["a 0", "b 1"]
    assert len(requests.asked) == 1
    assert requests.block(ProducerIdBlock(OK, 2, 2)) == ["c 2", "d 3"]
    assert requests.block(ProducerIdBlock(OK, 4, 2)) == ["e 4"]
    assert requests.asked == []


def test_a_failure_is_told_to_all_who_wait_and_not_kept(requests: IdRequests) -> None:
    requests.next("a")
    requests.next("b")
    assert requests.block(FAILED) == ["a none", "b none"]
    requests.next("c")
    assert requests.block(ProducerIdBlock(OK, 5, 1)) == ["c 5"]


def test_an_allocation_may_fail_on_the_spot() -> None:
    replies: list[str] = []
    ids = ProducerIds(VirtualClock(), lambda: done(FAILED))
    for _ in range(2):
        ids.next().then(pytest.fail, lambda refused: replies.append(str(refused)))
    assert len(replies) == 2


def test_a_receiver_of_an_id_may_request_the_next_one(requests: IdRequests) -> None:
    requests.ids.next().then(lambda number: requests.next(f"after {number}:"))
    requests.next("b")
    assert requests.block(ProducerIdBlock(OK, 0, 9)) == ["after 0: 1", "b 2"]


def test_taking_an_id_that_is_not_there_fetches_it_for_the_next_time(requests: IdRequests) -> None:
    assert requests.ids.take() is None
    assert requests.ids.take() is None
    assert len(requests.asked) == 1
    requests.next("a")
    assert requests.block(ProducerIdBlock(OK, 5, 3)) == ["a 5"]
    assert [requests.ids.take(), requests.ids.take(), requests.ids.take()] == [6, 7, None]
    requests.block(FAILED)
    assert requests.ids.take() is None
    requests.block(ProducerIdBlock(OK, 9, 1))
    assert requests.ids.take() == 9


def test_a_reserve_is_fetched_before_anybody_asks() -> None:
    requests = IdRequests(reserve=2)
    requests.ids.stock_up()
    requests.ids.stock_up()
    assert len(requests.asked) == 1
    requests.next("a")
    assert requests.block(ProducerIdBlock(OK, 0, 4)) == ["a 0"]
    requests.next("b")
    assert (requests.heard, requests.asked) == (["b 1"], [])
    requests.ids.stock_up()
    assert requests.asked == []


def test_what_is_left_is_given_while_no_block_can_be_had() -> None:
    requests = IdRequests(reserve=2)
    requests.ids.stock_up()
    requests.block(ProducerIdBlock(OK, 0, 3))
    requests.next("a")
    assert requests.asked == []
    requests.next("b")
    assert (requests.heard, len(requests.asked)) == (["a 0", "b 1"], 1)
    assert requests.block(FAILED) == ["a 0", "b 1"]
    requests.next("c")
    requests.next("d")
    assert (requests.heard, len(requests.asked)) == (["c 2"], 1)
    assert requests.block(ProducerIdBlock(OK, 7, 3)) == ["c 2", "d 7"]
    assert requests.ids.is_stocked


def test_a_block_that_comes_late_is_kept_for_who_asks_again(requests: IdRequests) -> None:
    requests.next("a")
    requests.clock.run_for(WAIT_MS)
    requests.next("b")
    assert (requests.heard, len(requests.asked)) == (["a none"], 1)
    assert requests.block(ProducerIdBlock(OK, 0, 9)) == ["a none", "b 0"]
    requests.next("a")
    assert requests.heard == ["a 1"]
