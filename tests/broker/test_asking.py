"""One question to one home; many answers gathered in order."""

from __future__ import annotations

from typing import Any

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.api import Call
from millpond.broker.asking import Asker, ask, collect, gather
from millpond.broker.wait import Wait
from millpond.coordinators.shard import Effects, Request
from millpond.wire import messages as m


class FakeLink:
    peer = "10.0.0.7:4000"


class FakeConnection:
    link = FakeLink()


def call() -> Call:
    return Call(FakeConnection(), 3, "client")  # type: ignore[arg-type]


class FakeHome:
    """Runs what it is given on a shard that answers at once."""

    def __init__(self) -> None:
        self.seen: list[Request] = []

    def step(self, request: Request, now_ms: int) -> Effects:
        self.seen.append(request)
        effects = Effects()
        effects.reply(request.token, m.HeartbeatResponse(error_code=ErrorCode.NONE))
        return effects

    def run(self, decide: Any, writing: Any = None) -> None:
        for reply in decide(self, 5).replies:
            reply.token.finish(reply.response)


class FakeCoordination:
    def __init__(self, home: FakeHome | None) -> None:
        self.home = home

    def home_of(self, key: str) -> FakeHome:
        if self.home is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, key)
        return self.home


def refuse(request: Request, refused: Refused) -> m.HeartbeatResponse:
    return m.HeartbeatResponse(error_code=refused.code)


def heard(wait: Wait[Any]) -> list[Any]:
    answers: list[Any] = []
    wait.then(answers.append)
    return answers


def test_a_question_reaches_the_shard_with_who_asks() -> None:
    home = FakeHome()
    wait = ask(FakeCoordination(home), call(), "g", m.HeartbeatRequest(group_id="g"), refuse)  # type: ignore[arg-type]
    assert heard(wait) == [m.HeartbeatResponse(error_code=0)]
    (request,) = home.seen
    assert (request.version, request.client_id, request.client_host) == (3, "client", "10.0.0.7")


def test_without_a_home_the_answer_is_a_refusal_of_the_right_kind() -> None:
    wait = ask(FakeCoordination(None), call(), "g", m.HeartbeatRequest(group_id="g"), refuse)  # type: ignore[arg-type]
    assert heard(wait) == [m.HeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)]


def test_an_asker_hears_of_failure_once() -> None:
    asker = Asker(call(), m.HeartbeatRequest(group_id="g"), refuse)
    asker.fail(Refused(ErrorCode.KAFKA_STORAGE_ERROR))
    asker.finish(m.HeartbeatResponse(error_code=0))
    assert heard(asker.wait) == [m.HeartbeatResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)]


def test_parts_keep_their_order_whoever_answers_first() -> None:
    waits: list[Wait[str]] = [Wait(), Wait(), Wait()]
    whole: list[list[str]] = []
    collect(waits, whole.append)
    waits[2].finish("c")
    waits[0].finish("a")
    assert whole == []
    waits[1].finish("b")
    assert whole == [["a", "b", "c"]]


def test_nothing_to_wait_for_is_answered_at_once() -> None:
    outcome = gather([], lambda parts: m.ListGroupsResponse(groups=list(parts)))
    assert isinstance(outcome, Wait)
    assert heard(outcome) == [m.ListGroupsResponse(groups=[])]
