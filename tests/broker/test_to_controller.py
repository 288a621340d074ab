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


class ChannelNode:
    """A node between two others, which answer as the test says."""

    def __init__(self) -> None:
        self.sim = SimWorld(1)
        self.is_active = False
        self.leader_id = NO_NODE
        self.asked: list[str] = []
        self.here: list[Later[Any]] = []
        self.there: list[Later[Any]] = []
        self.heard: list[Any] = []
        world = self.sim.start("asker")
        self.channel = ControllerChannel(world.clock, world.entropy, self, self._ask_here, self._ask_node)

    def _ask_here(self, request: m.Message, version: int, change_id: str | None) -> Later[Any]:
        self.asked.append("here")
        return self.here.pop(0)

    def _ask_node(
        self, node_id: int, request: m.Message, version: int, timeout_ms: int, change_id: str | None
    ) -> Later[Any]:
        self.asked.append(f"node {node_id}")
        assert 0 < timeout_ms <= TIMEOUT_MS
        return self.there.pop(0)

    def ask(self) -> Later[Any]:
        later = self.channel.ask(REQUEST, 0, TIMEOUT_MS)
        later.then(self.heard.append, self.heard.append)
        return later

    def run(self, duration_ms: int) -> None:
        self.sim.run_for(duration_ms)


@pytest.fixture
def host() -> ChannelNode:
    return ChannelNode()


def test_the_active_controller_asks_itself_and_waits_for_nothing(host: ChannelNode) -> None:
    host.is_active, host.here = True, [done(response(7))]
    host.ask()
    assert (host.asked, host.heard) == (["here"], [response(7)])


def test_any_other_node_asks_the_one_that_leads(host: ChannelNode) -> None:
    host.leader_id, host.there = 2, [done(response(7))]
    host.ask()
    assert (host.asked, host.heard) == (["node 2"], [response(7)])


@pytest.mark.parametrize("refusal", [response(code=ErrorCode.NOT_CONTROLLER), created(ErrorCode.NOT_CONTROLLER)])
def test_who_is_the_controller_no_more_sends_the_asker_on(host: ChannelNode, refusal: Any) -> None:
    host.leader_id, host.there = 2, [done(refusal), done(response(9))]
    host.ask()
    host.leader_id = 3
    host.run(AGAIN_MS)
    assert (host.asked, host.heard) == (["node 2", "node 3"], [response(9)])


def test_other_refusals_are_the_answer(host: ChannelNode) -> None:
    host.leader_id, host.there = 2, [done(created(ErrorCode.TOPIC_ALREADY_EXISTS))]
    host.ask()
    assert host.heard == [created(ErrorCode.TOPIC_ALREADY_EXISTS)]


def test_a_lost_answer_is_asked_for_again(host: ChannelNode) -> None:
    host.leader_id, host.there = 2, [failed(RequestLost("cut")), done(response(1))]
    host.ask()
    assert host.heard == []
    host.run(AGAIN_MS)
    assert (host.asked, host.heard) == (["node 2", "node 2"], [response(1)])


def test_a_node_that_becomes_the_controller_meanwhile_answers_by_itself(host: ChannelNode) -> None:
    silent: Later[Any] = Later()
    host.leader_id, host.there, host.here = 2, [silent], [done(response(4))]
    host.ask()
    host.run(AGAIN_MS)
    host.is_active = True
    host.run(AGAIN_MS)
    assert (host.asked, host.heard) == (["node 2", "here"], [response(4)])
    silent.finish(response(5))
    assert host.heard == [response(4)], "the answer of the one before is not acted upon"


def test_a_client_that_waited_is_answered_by_its_own_connection(host: ChannelNode) -> None:
    """The response may depend on it: DescribeQuorum lists the nodes' endpoints on the listener that was used."""
    host.channel.ask(REQUEST, 0, TIMEOUT_MS, lambda: done(response(8))).then(host.heard.append)
    assert host.heard == []
    host.is_active = True
    host.run(AGAIN_MS)
    assert (host.asked, host.heard) == ([], [response(8)])


def test_what_cannot_be_read_ends_its_own_connection_though_it_waited(host: ChannelNode) -> None:
    broken = MalformedMessage("an envelope that does not say who asks")

    def refuse() -> Later[Any]:
        raise broken

    host.channel.ask(REQUEST, 0, TIMEOUT_MS, refuse).then(host.heard.append, host.heard.append)
    host.is_active = True
    host.run(AGAIN_MS)
    assert host.heard == [broken]


def test_a_controller_that_only_is_slow_is_not_asked_twice(host: ChannelNode) -> None:
    slow: Later[Any] = Later()
    host.leader_id, host.there = 2, [slow]
    host.ask()
    host.leader_id = NO_NODE
    host.run(TIMEOUT_MS // 2)
    host.leader_id = 2
    host.run(AGAIN_MS * 3)
    slow.finish(response(6))
    assert (host.asked, host.heard) == (["node 2"], [response(6)])


def test_without_a_controller_the_asker_hears_of_it_when_the_time_is_over(host: ChannelNode) -> None:
    host.ask()
    host.run(TIMEOUT_MS - AGAIN_MS * 2)
    assert host.heard == []
    host.run(AGAIN_MS * 3)
    (refused,) = host.heard
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.NOT_CONTROLLER


def test_what_a_controller_may_still_do_is_not_refused_but_open(host: ChannelNode) -> None:
    host.leader_id, host.there = 2, [failed(RequestLost("cut"))]
    host.ask()
    host.leader_id = NO_NODE
    host.run(TIMEOUT_MS)
    (refused,) = host.heard
    assert refused.code is ErrorCode.REQUEST_TIMED_OUT


def test_no_request_is_sent_for_a_closed_connection(host: ChannelNode) -> None:
    host.leader_id, host.there = 2, [failed(RequestLost("cut"))]
    host.ask().cancel()
    host.run(TIMEOUT_MS)
    assert host.asked == ["node 2"]
