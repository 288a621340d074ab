"""Requests that only the controller may decide reach the current one, and none waits forever."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.later import Later, done, failed
from millpond.broker.peers.controller_channel import AGAIN_MS, NO_NODE, ControllerChannel
from millpond.broker.peers.requester import RequestLost
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

TIMEOUT_MS = 2_000
REQUEST = m.AllocateProducerIdsRequest(broker_id=1)


def response(start: int = 0, code: ErrorCode = ErrorCode.NONE) -> m.AllocateProducerIdsResponse:
    return m.AllocateProducerIdsResponse(error_code=code, producer_id_start=start)


def created(code: ErrorCode) -> m.CreateTopicsResponse:
    """A response with nested results."""
    topic = m.CreateTopicsResponse.CreatableTopicResult(name="t", error_code=code)
    return m.CreateTopicsResponse(topics=[topic])


class Play:
    """A node between two others, which answer as the test says."""

    def __init__(self) -> None:
        self.sim = SimWorld(1)
        self.is_active = False
        self.leader_id = NO_NODE
        self.asked: list[str] = []
        self.here: list[Later[Any]] = []
        self.there: list[Later[Any]] = []
        self.heard: list[Any] = []
        clock = self.sim.start("asker").clock
        self.way = ControllerChannel(clock, self, self._ask_here, self._ask_node)

    def _ask_here(self, request: m.Message, version: int) -> Later[Any]:
        self.asked.append("here")
        return self.here.pop(0)

    def _ask_node(self, node_id: int, request: m.Message, version: int, timeout_ms: int) -> Later[Any]:
        self.asked.append(f"node {node_id}")
        assert 0 < timeout_ms <= TIMEOUT_MS
        return self.there.pop(0)

    def ask(self) -> Later[Any]:
        later = self.way.ask(REQUEST, 0, TIMEOUT_MS)
        later.then(self.heard.append, self.heard.append)
        return later

    def run(self, duration_ms: int) -> None:
        self.sim.run_for(duration_ms)


@pytest.fixture
def play() -> Play:
    return Play()


def test_the_active_controller_asks_itself_and_waits_for_nothing(play: Play) -> None:
    play.is_active, play.here = True, [done(response(7))]
    play.ask()
    assert (play.asked, play.heard) == (["here"], [response(7)])


def test_any_other_node_asks_the_one_that_leads(play: Play) -> None:
    play.leader_id, play.there = 2, [done(response(7))]
    play.ask()
    assert (play.asked, play.heard) == (["node 2"], [response(7)])


@pytest.mark.parametrize("refusal", [response(code=ErrorCode.NOT_CONTROLLER), created(ErrorCode.NOT_CONTROLLER)])
def test_who_is_the_controller_no_more_sends_the_asker_on(play: Play, refusal: Any) -> None:
    play.leader_id, play.there = 2, [done(refusal), done(response(9))]
    play.ask()
    play.leader_id = 3
    play.run(AGAIN_MS)
    assert (play.asked, play.heard) == (["node 2", "node 3"], [response(9)])


def test_other_refusals_are_the_answer(play: Play) -> None:
    play.leader_id, play.there = 2, [done(created(ErrorCode.TOPIC_ALREADY_EXISTS))]
    play.ask()
    assert play.heard == [created(ErrorCode.TOPIC_ALREADY_EXISTS)]


def test_a_lost_answer_is_asked_for_again(play: Play) -> None:
    play.leader_id, play.there = 2, [failed(RequestLost("cut")), done(response(1))]
    play.ask()
    assert play.heard == []
    play.run(AGAIN_MS)
    assert (play.asked, play.heard) == (["node 2", "node 2"], [response(1)])


def test_a_node_that_becomes_the_controller_meanwhile_answers_by_itself(play: Play) -> None:
    silent: Later[Any] = Later()
    play.leader_id, play.there, play.here = 2, [silent], [done(response(4))]
    play.ask()
    play.run(AGAIN_MS)
    play.is_active = True
    play.run(AGAIN_MS)
    assert (play.asked, play.heard) == (["node 2", "here"], [response(4)])
    silent.finish(response(5))
    assert play.heard == [response(4)], "the answer of the one before is not acted upon"


def test_a_client_that_waited_is_answered_by_its_own_connection(play: Play) -> None:
    """The response may depend on it: DescribeQuorum lists the nodes' endpoints on the listener that was used."""
    play.way.ask(REQUEST, 0, TIMEOUT_MS, lambda: done(response(8))).then(play.heard.append)
    assert play.heard == []
    play.is_active = True
    play.run(AGAIN_MS)
    assert (play.asked, play.heard) == ([], [response(8)])


def test_what_cannot_be_read_ends_its_own_connection_though_it_waited(play: Play) -> None:
    broken = MalformedMessage("an envelope that does not say who asks")

    def refuse() -> Later[Any]:
        raise broken

    play.way.ask(REQUEST, 0, TIMEOUT_MS, refuse).then(play.heard.append, play.heard.append)
    play.is_active = True
    play.run(AGAIN_MS)
    assert play.heard == [broken]


def test_a_controller_that_only_is_slow_is_not_asked_twice(play: Play) -> None:
    slow: Later[Any] = Later()
    play.leader_id, play.there = 2, [slow]
    play.ask()
    play.leader_id = NO_NODE
    play.run(TIMEOUT_MS // 2)
    play.leader_id = 2
    play.run(AGAIN_MS * 3)
    slow.finish(response(6))
    assert (play.asked, play.heard) == (["node 2"], [response(6)])


def test_without_a_controller_the_asker_hears_of_it_when_the_time_is_over(play: Play) -> None:
    play.ask()
    play.run(TIMEOUT_MS - AGAIN_MS * 2)
    assert play.heard == []
    play.run(AGAIN_MS * 3)
    (refused,) = play.heard
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.NOT_CONTROLLER


def test_what_a_controller_may_still_do_is_not_refused_but_open(play: Play) -> None:
    play.leader_id, play.there = 2, [failed(RequestLost("cut"))]
    play.ask()
    play.leader_id = NO_NODE
    play.run(TIMEOUT_MS)
    (refused,) = play.heard
    assert refused.code is ErrorCode.REQUEST_TIMED_OUT


def test_nobody_asks_for_one_who_has_gone(play: Play) -> None:
    play.leader_id, play.there = 2, [failed(RequestLost("cut"))]
    play.ask().cancel()
    play.run(TIMEOUT_MS)
    assert play.asked == ["node 2"]
