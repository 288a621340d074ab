"""A forwarded change whose response is lost: the repeated attempt gets the response to the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.security.test_secure_cluster import SecureCluster, upsertion
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.base.errors import ErrorCode
from millpond.base.later import Later, done, failed
from millpond.broker.forwarding import repeated_changes
from millpond.broker.forwarding.repeated_changes import RepeatedChanges
from millpond.broker.peers.controller_channel import FORWARD_MS_MAX
from millpond.broker.peers.requester import RequestLost
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

SCRAM_SHA_512 = 2
LOST = RequestLost("connection reset")


def lose_response(
    forwarder: SimNode, key: int, meanwhile: Callable[[Later[Any]], None] = lambda lost: lost.fail(LOST)
) -> list[str | None]:
    """The controller executes the next change of this kind that the node forwards, and its response is lost. Returns
    the change ids of all attempts."""
    channel = forwarder.broker.controller_channel
    ask_node: Callable[..., Later[Any]] = channel._ask_node
    change_ids: list[str | None] = []

    def ask(
        node_id: int, request: m.Message, version: int, timeout_ms: int, change_id: str | None = None
    ) -> Later[Any]:
        rest = () if change_id is None else (change_id,)
        if key == request.API_KEY:
            change_ids.append(change_id)
        if key != request.API_KEY or len(change_ids) > 1:
            return ask_node(node_id, request, version, timeout_ms, *rest)
        lost: Later[Any] = Later()
        ask_node(node_id, request, version, timeout_ms, *rest).then(lambda _: meanwhile(lost))
        return lost

    channel._ask_node = ask
    return change_ids


@pytest.fixture(scope="module")
def cluster() -> NodeCluster:
    return NodeCluster()


def test_a_repeated_deletion_of_a_user_succeeds(cluster: NodeCluster) -> None:
    forwarder = cluster.other(cluster.controller_id)
    creation = m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("alice", "hers")])
    assert cluster.ask(forwarder, creation, 0).results[0].error_code == ErrorCode.NONE
    attempts = lose_response(cluster.nodes[forwarder], 51)
    gone = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="alice", mechanism=SCRAM_SHA_512)
    deletion = m.AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[])
    assert cluster.ask(forwarder, deletion, 0).results[0].error_code == ErrorCode.NONE
    assert len(attempts) == 2
    assert cluster.ask(forwarder, deletion, 0).results[0].error_code == ErrorCode.RESOURCE_NOT_FOUND


def test_a_repeated_election_succeeds() -> None:
    cluster = NodeCluster()
    first = cluster.controller_id
    preferred = cluster.other(first)
    cluster.create(preferred)
    forwarder = cluster.other(first, preferred)
    cluster.nodes[preferred].kill()
    cluster.wait(lambda: cluster.partition().leader != preferred)
    cluster.nodes[preferred].start()
    cluster.wait(cluster.is_whole)
    attempts = lose_response(cluster.nodes[forwarder], 43)
    topic = m.ElectLeadersRequest.TopicPartitions(topic="pond", partitions=[0])
    election = m.ElectLeadersRequest(election_type=0, topic_partitions=[topic], timeout_ms=10_000)
    (result,) = cluster.ask(forwarder, election, 2).replica_election_results[0].partition_result
    assert (result.error_code, len(attempts)) == (ErrorCode.NONE, 2)
    assert cluster.partition().leader == preferred


def test_a_repeated_unregistration_succeeds() -> None:
    cluster = NodeCluster(count=4)
    victim = cluster.other(cluster.controller_id)
    forwarder = cluster.other(cluster.controller_id, victim)
    cluster.nodes[victim].kill()
    cluster.wait(lambda: cluster.image.brokers[victim].fenced)
    attempts = lose_response(cluster.nodes[forwarder], 64)
    response = cluster.ask(forwarder, m.UnregisterBrokerRequest(broker_id=victim), 0)
    assert (response.error_code, response.error_message, len(attempts)) == (ErrorCode.NONE, None, 2)


@pytest.mark.parametrize("dies", [False, True], ids=["same controller", "another controller"])
def test_a_repeated_creation_of_a_token_returns_the_same_token(dies: bool) -> None:
    secure = SecureCluster()
    assert secure.sim.run_until(lambda: secure.active() == {1, 2, 3}, within_ms=60_000)
    controller_id = secure.cluster.controller_id
    assert controller_id is not None
    forwarder = next(each for each in secure.cluster.nodes if each != controller_id)
    node = secure.client(forwarder, "node")
    assert secure.log_in(node, "node", "known to all nodes") == ErrorCode.NONE
    creation = m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("alice", "hers")])
    assert secure.ask(node, creation, 0).results[0].error_code == ErrorCode.NONE
    secure.sim.run_for(1_000)
    alice = secure.client(forwarder, "alice")
    assert secure.log_in(alice, "alice", "hers") == ErrorCode.NONE

    def meanwhile(lost: Later[Any]) -> None:
        if dies:
            secure.sim.clock.call_soon(lambda: secure.cluster.kill(controller_id))
        lost.fail(LOST)

    attempts = lose_response(secure.cluster.nodes[forwarder], 58, meanwhile)
    token = secure.ask(alice, m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    assert token.error_code == ErrorCode.NONE
    assert attempts
    tokens = secure.cluster.nodes[forwarder].broker.image.tokens
    assert [each.token_id for each in tokens] == [token.token_id]
    if dies:
        return
    attempts = lose_response(secure.cluster.nodes[forwarder], 58)
    expiry = m.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
    assert secure.ask(alice, expiry, 2).error_code == ErrorCode.NONE
    assert len(attempts) == 2
    assert secure.ask(alice, expiry, 2).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


# What the controller keeps.


class Controller:
    def __init__(self) -> None:
        self.world = SimWorld(1)
        self.changes = RepeatedChanges(self.world.start("controller").clock)
        self.executed: list[str] = []

    def answers(self, change_id: str, outcome: Any) -> list[Any]:
        """What the attempt is answered, as soon as it is."""

        def execute() -> Any:
            self.executed.append(change_id)
            return outcome

        answers: list[Any] = []
        answer = self.changes.once(change_id, execute)
        (answer if isinstance(answer, Later) else done(answer)).then(answers.append, answers.append)
        return answers


def response(code: ErrorCode = ErrorCode.NONE) -> m.UnregisterBrokerResponse:
    return m.UnregisterBrokerResponse(error_code=code)


def test_an_attempt_waits_for_the_first_that_is_still_being_executed() -> None:
    controller, pending = Controller(), Later[Any]()
    first, second = controller.answers("a", pending), controller.answers("a", response())
    assert (first, second) == ([], [])
    pending.finish(response(ErrorCode.INVALID_REQUEST))
    assert first == second == [response(ErrorCode.INVALID_REQUEST)]
    assert controller.executed == ["a"]


def test_a_broken_connection_does_not_cancel_the_change() -> None:
    controller, pending = Controller(), Later[Any]()
    answer = controller.changes.once("a", lambda: pending)
    assert isinstance(answer, Later)
    answer.cancel()
    assert not pending.ended
    pending.finish(response())
    assert controller.answers("a", response(ErrorCode.BROKER_ID_NOT_REGISTERED)) == [response()]


@pytest.mark.parametrize("outcome", [response(ErrorCode.NOT_CONTROLLER), failed(LOST)])
def test_a_change_that_was_not_executed_is_attempted_again(outcome: Any) -> None:
    controller = Controller()
    assert len(controller.answers("a", outcome)) == 1
    assert controller.answers("a", response()) == [response()]
    assert controller.executed == ["a", "a"]


def test_responses_are_kept_while_the_node_may_repeat_the_change() -> None:
    controller = Controller()
    controller.answers("a", response())
    controller.world.run_for(FORWARD_MS_MAX - 1)
    controller.answers("a", response())
    assert controller.executed == ["a"]
    controller.world.run_for(1)
    controller.answers("a", response())
    assert controller.executed == ["a", "a"]


def test_the_number_of_kept_responses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_changes, "RESPONSES_MAX", 2)
    controller = Controller()
    for change_id in ("a", "b", "c", "c", "b"):
        controller.answers(change_id, response())
    assert controller.executed == ["a", "b", "c"]
    controller.answers("a", response())
    assert controller.executed == ["a", "b", "c", "a"]
