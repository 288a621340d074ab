"""Clients may use any node: it forwards what only the controller can answer, and then knows the outcome itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.later import Later, done
from millpond.base.rights import AclResource, Operation
from millpond.broker.apis import k20_delete_topics
from millpond.broker.forwarding.change_relay import catch_up
from millpond.broker.peers.requester import RequestLost
from millpond.broker.requests.call import Call
from millpond.sim.clients.client import SimClient
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.history.records import History
from millpond.sim.node import PORT
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

TOPIC = 2
"""The resource type."""


class Play:
    """A cluster of three nodes, and a client of one that is not the controller."""

    def __init__(self) -> None:
        self.sim = SimWorld(7)
        self.cluster = SimCluster(self.sim, 3, History())
        for node_id in self.cluster.nodes:
            assert self.cluster.start(node_id)
        assert self.sim.run_until(self.is_founded, within_ms=30_000)
        self.node_id = next(each for each in self.cluster.nodes if each != self.cluster.controller_id)
        self.client = SimClient(self.sim.network, f"node{self.node_id}", PORT, "client", timeout_ms=20_000)

    def is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def ask(self, request: m.Message, version: int) -> Any:
        heard: list[Any] = []
        self.client.send(request, version, heard.append)
        assert self.sim.run_until(lambda: bool(heard), within_ms=20_000)
        return heard[0]

    @property
    def image(self) -> Any:
        """The image of the node that the client uses."""
        return self.cluster.nodes[self.node_id].broker.image

    def create(self, *names: str, factor: int = 3) -> dict[str, int]:
        wanted = [
            m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=2, replication_factor=factor)
            for name in names
        ]
        topics = self.ask(m.CreateTopicsRequest(topics=wanted, timeout_ms=5_000), 7).topics
        return {each.name: each.error_code for each in topics}

    def alter(self, topic: str, name: str, value: str) -> int:
        config = m.IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
        resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC, resource_name=topic, configs=[config]
        )
        (result,) = self.ask(m.IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        return int(result.error_code)


@pytest.fixture(scope="module")
def shared() -> Play:
    return Play()


def test_what_is_changed_through_a_node_is_known_there_when_it_is_answered(shared: Play) -> None:
    play = shared
    assert play.create("pond") == {"pond": ErrorCode.NONE}
    assert "pond" in play.image.topics
    assert play.alter("pond", "retention.ms", "1234") == ErrorCode.NONE
    assert play.image.topic_config("pond")["retention.ms"] == "1234"
    more = m.CreatePartitionsRequest.CreatePartitionsTopic(name="pond", count=5, assignments=None)
    (grown,) = play.ask(m.CreatePartitionsRequest(topics=[more], timeout_ms=5_000), 3).results
    assert (grown.error_code, len(play.image.topics["pond"].partitions)) == (ErrorCode.NONE, 5)
    by_state = [m.DeleteTopicsRequest.DeleteTopicState(name="doomed")]
    for version, named in ((5, {"topic_names": ["doomed"]}), (6, {"topics": by_state})):
        play.create("doomed")
        (deleted,) = play.ask(m.DeleteTopicsRequest(timeout_ms=5_000, **named), version).responses
        assert (deleted.error_code, "doomed" in play.image.topics) == (ErrorCode.NONE, False)


def test_refusals_come_back_as_the_controller_said_them(shared: Play) -> None:
    play = shared
    play.create("twice")
    assert play.create("twice", "__consumer_offsets") == {
        "twice": ErrorCode.TOPIC_ALREADY_EXISTS,
        "__consumer_offsets": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert play.create("wide", factor=4) == {"wide": ErrorCode.INVALID_REPLICATION_FACTOR}
    assert play.alter("nothing", "retention.ms", "1") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_that_come_into_being_on_the_way_do_so_at_any_node(shared: Play) -> None:
    play = shared
    named = m.MetadataRequest.MetadataRequestTopic(name="asked-for")
    (topic,) = play.ask(m.MetadataRequest(topics=[named], allow_auto_topic_creation=True), 9).topics
    assert (topic.error_code, topic.name) == (ErrorCode.NONE, "asked-for")
    (found,) = play.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
    assert found.error_code == ErrorCode.NONE
    assert found.node_id in play.cluster.nodes
    replicas = [each.replicas for each in play.image.topics["__consumer_offsets"].partitions]
    assert all(len(each) == 3 for each in replicas)
    assert play.image.topic_config("__consumer_offsets")["min.insync.replicas"] == "2"


def test_producer_ids_of_different_nodes_differ(shared: Play) -> None:
    play = shared
    ids = []
    for node_id in play.cluster.nodes:
        client = SimClient(play.sim.network, f"node{node_id}", PORT, f"producer{node_id}")
        heard: list[Any] = []
        client.send(m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4, heard.append)
        assert play.sim.run_until(lambda heard=heard: bool(heard), within_ms=5_000)  # type: ignore[misc]
        ids.append(heard[0].producer_id)
    assert len(set(ids)) == 3


def test_a_request_waits_for_the_next_controller_when_the_last_one_dies() -> None:
    play = Play()
    controller_id = play.cluster.controller_id
    assert controller_id is not None
    play.cluster.kill(controller_id)
    assert play.create("pond", factor=2) == {"pond": ErrorCode.NONE}
    assert play.cluster.controller_id not in (None, controller_id)


def test_a_new_controller_is_not_asked_what_is_committed_before_it_knows() -> None:
    """It answered with the high watermark from before its election. A node that was behind took itself for caught up,
    and told a client that a topic which it had yet to hear of does not exist."""
    play = Play()
    controller_id = play.cluster.controller_id
    assert controller_id is not None
    successor_id = next(each for each in play.cluster.nodes if each not in (controller_id, play.node_id))
    play.cluster.pause(play.node_id)
    client = SimClient(play.sim.network, f"node{controller_id}", PORT, "other", timeout_ms=20_000)
    heard: list[Any] = []
    client.send(creation("pond", factor=2), 7, heard.append)
    assert play.sim.run_until(lambda: bool(heard), within_ms=20_000)
    assert heard[0].topics[0].error_code == ErrorCode.NONE
    for node_id in (controller_id, successor_id):
        play.cluster.kill(node_id)
    play.cluster.resume(play.node_id)
    # Nothing of the successor's epoch is committed before this disk has it.
    play.cluster.nodes[play.node_id].workers_delay_ms = 200
    assert play.cluster.start(successor_id)
    doomed = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    (deleted,) = play.ask(m.DeleteTopicsRequest(topics=[doomed], timeout_ms=10_000), 6).responses
    assert (deleted.name, deleted.error_code) == ("pond", ErrorCode.NONE)
    assert play.cluster.controller_id == successor_id


def test_a_controller_that_was_paused_does_not_deny_a_topic_that_its_successor_has_created() -> None:
    play = Play()
    controller_id = play.cluster.controller_id
    assert controller_id is not None
    client = SimClient(play.sim.network, f"node{controller_id}", PORT, "other", timeout_ms=20_000)
    heard: list[Any] = []
    client.send(m.MetadataRequest(topics=[]), 9, heard.append)
    assert play.sim.run_until(lambda: bool(heard), within_ms=5_000)
    play.cluster.pause(controller_id)
    assert play.create("pond", factor=2) == {"pond": ErrorCode.NONE}
    doomed = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    heard.clear()
    client.send(m.DeleteTopicsRequest(topics=[doomed], timeout_ms=10_000), 6, heard.append)
    play.sim.run_for(5)
    play.cluster.resume(controller_id)
    assert play.sim.run_until(lambda: bool(heard), within_ms=20_000)
    assert heard[0].responses[0].error_code == ErrorCode.NOT_CONTROLLER


def test_a_node_that_leads_no_more_is_not_believed_about_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal has a high watermark, too: 0, which every node has applied."""
    play = Play()
    broker = play.cluster.nodes[play.node_id].broker
    ask_node = broker.controller_channel._ask_node
    refusals = [m.DescribeQuorumResponse.PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)]

    def ask(node_id: int, request: m.Message, version: int, timeout_ms: int) -> Later[Any]:
        if not refusals:
            return ask_node(node_id, request, version, timeout_ms)
        topic = m.DescribeQuorumResponse.TopicData(partitions=[refusals.pop()])
        return done(m.DescribeQuorumResponse(topics=[topic]))

    monkeypatch.setattr(broker.controller_channel, "_ask_node", ask)
    heard: list[None] = []
    catch_up(broker.contexts.metadata).then(heard.append)
    assert (refusals, heard) == ([], [])
    assert play.sim.run_until(lambda: bool(heard), within_ms=1_000)


def test_a_change_whose_controller_falls_silent_may_still_be_made_and_is_not_told_as_refused() -> None:
    play = Play()
    for node_id in play.cluster.nodes:
        if node_id != play.node_id:
            play.sim.network.blackhole(f"node{node_id}", f"node{play.node_id}")
    assert play.create("pond") == {"pond": ErrorCode.REQUEST_TIMED_OUT}


def test_a_node_says_nothing_of_its_cluster_before_it_has_found_it() -> None:
    """librdkafka drops all its brokers when a response lists none. A topic that is not known yet is not a deleted
    topic.
    """
    play = Play()
    play.create("pond")
    for node_id in play.cluster.nodes:
        play.cluster.kill(node_id)
    assert play.cluster.start(play.node_id)
    named = m.MetadataRequest.MetadataRequestTopic(name="pond")
    heard: list[Any] = []
    client = SimClient(play.sim.network, f"node{play.node_id}", PORT, "early", timeout_ms=20_000)
    client.send(m.MetadataRequest(topics=[named]), 9, heard.append)
    assert not play.sim.run_until(lambda: bool(heard), within_ms=3_000)
    for node_id in play.cluster.nodes:
        if node_id != play.node_id:
            assert play.cluster.start(node_id)
    assert play.sim.run_until(lambda: bool(heard), within_ms=10_000)
    assert [each.error_code for each in heard[0].topics] == [ErrorCode.NONE]
    # The node knows the cluster a moment before it is unfenced itself.
    assert len(heard[0].brokers) >= 2
    assert heard[0].cluster_id


def test_between_two_leaders_a_replica_is_named_as_the_coordinator_one_that_lives_first() -> None:
    """librdkafka hangs for good after three responses without a coordinator."""
    play = Play()
    asked = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    found = play.ask(asked, 4).coordinators[0]
    assert found.error_code == ErrorCode.NONE
    index = play.cluster.nodes[play.node_id].broker.groups.partition_of("g")
    partitions = play.image.topics["__consumer_offsets"].partitions
    other = next(each for each in play.cluster.nodes if each != found.node_id)
    partitions[index] = replace(partitions[index], leader=-1, isr=(other,))
    assert play.ask(asked, 4).coordinators[0].node_id == other
    play.image.brokers[other] = replace(play.image.brokers[other], fenced=True)
    assert play.ask(asked, 4).coordinators[0].node_id not in (other, -1)
    for node_id, broker in play.image.brokers.items():
        play.image.brokers[node_id] = replace(broker, fenced=True)
    assert play.ask(asked, 4).coordinators[0].node_id == other


def set_quota(play: Play, entity: tuple[str, str | None], key: str, value: float | None) -> int:
    alter = m.AlterClientQuotasRequest
    entry = alter.EntryData(
        entity=[alter.EntityData(entity_type=entity[0], entity_name=entity[1])],
        ops=[alter.OpData(key=key, value=value or 0.0, remove=value is None)],
    )
    (told,) = play.ask(alter(entries=[entry]), 1).entries
    return int(told.error_code)


def test_a_quota_that_is_set_at_one_node_holds_at_all(shared: Play) -> None:
    play = shared
    brokers = [node.broker for node in play.cluster.nodes.values()]
    assert set_quota(play, ("client-id", "somebody"), "producer_byte_rate", 5.0) == ErrorCode.NONE
    assert play.image.quotas.of, "the node that was asked knows of it"
    assert play.sim.run_until(lambda: all(each.quotas.is_on for each in brokers), within_ms=5_000)
    assert set_quota(play, ("client-id", "somebody"), "no_such_rate", 5.0) == ErrorCode.INVALID_REQUEST
    assert set_quota(play, ("client-id", "somebody"), "producer_byte_rate", None) == ErrorCode.NONE
    assert play.sim.run_until(lambda: not any(each.quotas.is_on for each in brokers), within_ms=5_000)


def test_partitions_are_counted_by_the_controller_whichever_node_is_asked(shared: Play) -> None:
    play = shared
    assert set_quota(play, ("client-id", None), "controller_mutation_rate", 0.1) == ErrorCode.NONE
    brokers = [node.broker for node in play.cluster.nodes.values()]
    assert play.sim.run_until(lambda: all(each.quotas.is_on for each in brokers), within_ms=5_000)
    # One second's worth is 0.1: eleven seconds' worth has accumulated, and the first request may exceed that.
    made = play.create("first-of-many", "second-of-many", "__consumer_offsets")
    assert made == {
        "first-of-many": ErrorCode.NONE,
        "second-of-many": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        "__consumer_offsets": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert "second-of-many" not in play.image.topics
    for node_id in play.cluster.nodes:
        # Over another connection, to any node including the controller.
        client = SimClient(play.sim.network, f"node{node_id}", PORT, "client", timeout_ms=20_000)
        heard: list[Any] = []
        wanted = m.CreateTopicsRequest.CreatableTopic(name="third", num_partitions=1, replication_factor=3)
        client.send(m.CreateTopicsRequest(topics=[wanted], timeout_ms=5_000), 7, heard.append)
        assert play.sim.run_until(lambda heard=heard: bool(heard), within_ms=20_000)
        assert heard[0].topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED, node_id
        assert "controller_mutation_rate" in heard[0].topics[0].error_message
        assert heard[0].throttle_time_ms > 1000, "which the controller knows"
        client.disconnect()
    assert "third" not in play.image.topics
    assert set_quota(play, ("client-id", None), "controller_mutation_rate", None) == ErrorCode.NONE
    assert play.create("third") == {"third": ErrorCode.NONE}


# The controller's response is lost, and the node retries.


def lose_response(play: Play, key: int, *meanwhile: tuple[m.Message, int]) -> None:
    """The next request of this kind that the node forwards is carried out, but its response is lost. Before the node
    retries, another client sends the requests in `meanwhile` to the controller, one after the other."""
    way = play.cluster.nodes[play.node_id].broker.controller_channel
    ask_node = way._ask_node
    other = SimClient(play.sim.network, f"node{play.cluster.controller_id}", PORT, "other", timeout_ms=20_000)
    left = list(meanwhile)
    is_lost = False

    def ask(node_id: int, request: m.Message, version: int, timeout_ms: int) -> Later[Any]:
        nonlocal is_lost
        if key != request.API_KEY or is_lost:
            return ask_node(node_id, request, version, timeout_ms)
        is_lost = True
        lost: Later[Any] = Later()

        def go_on(_: Any) -> None:
            if left:
                other.send(*left.pop(0), go_on)
            else:
                lost.fail(RequestLost("lost on the way"))

        ask_node(node_id, request, version, timeout_ms).then(go_on)
        return lost

    way._ask_node = ask


def creation(name: str, partitions: int = 2, factor: int = 3) -> m.CreateTopicsRequest:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def test_a_repeated_deletion_does_not_delete_a_topic_created_since(shared: Play) -> None:
    play = shared
    for version, name in ((5, "first"), (6, "second")):
        play.create(name)
        before = play.image.topics[name].id
        lose_response(play, 20, (creation(name), 7))
        named = [m.DeleteTopicsRequest.DeleteTopicState(name=name)]
        request = m.DeleteTopicsRequest(topics=named if version == 6 else [], timeout_ms=10_000)
        request.topic_names = [name] if version < 6 else []
        (result,) = play.ask(request, version).responses
        assert (result.name, result.error_code) == (name, ErrorCode.NONE)
        play.sim.run_for(2_000)
        assert play.image.topics[name].id != before


def test_a_repeated_creation_is_not_refused_for_its_own_first_attempt(shared: Play) -> None:
    play = shared
    lose_response(play, 19)
    (result,) = play.ask(creation("mine"), 7).topics
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 2, 3)
    assert result.topic_id == play.image.topics["mine"].id
    assert result.configs


def test_a_repeated_creation_is_refused_for_the_topic_of_another(shared: Play) -> None:
    play = shared
    deletion = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="theirs")], timeout_ms=5_000)
    lose_response(play, 19, (deletion, 6), (creation("theirs", partitions=5), 7))
    (result,) = play.ask(creation("theirs"), 7).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    play.create("there")
    lose_response(play, 19)
    (result,) = play.ask(creation("there"), 7).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_repeated_creation_with_an_assignment_is_refused_for_a_topic_with_fewer_partitions(shared: Play) -> None:
    """The node compared partition by partition, and the other client's topic had only one: an IndexError."""
    play = shared
    kind = m.CreateTopicsRequest
    assigned = [kind.CreatableReplicaAssignment(partition_index=each, broker_ids=[1, 2]) for each in range(3)]

    def request(partitions: int) -> m.CreateTopicsRequest:
        topic = kind.CreatableTopic(
            name="assigned", num_partitions=-1, replication_factor=-1, assignments=assigned[:partitions]
        )
        return kind(topics=[topic], timeout_ms=10_000)

    deletion = m.DeleteTopicsRequest(
        topics=[m.DeleteTopicsRequest.DeleteTopicState(name="assigned")], timeout_ms=5_000
    )
    lose_response(play, 19, (deletion, 6), (request(1), 7))
    (result,) = play.ask(request(3), 7).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(play.image.topics["assigned"].partitions) == 1


def test_a_repeated_growth_is_not_refused_for_its_own_first_attempt(shared: Play) -> None:
    play = shared
    play.create("growing")
    more = m.CreatePartitionsRequest.CreatePartitionsTopic(name="growing", count=5, assignments=None)
    request = m.CreatePartitionsRequest(topics=[more], timeout_ms=10_000)
    lose_response(play, 37)
    (result,) = play.ask(request, 3).results
    assert (result.error_code, len(play.image.topics["growing"].partitions)) == (ErrorCode.NONE, 5)
    lose_response(play, 37)
    (result,) = play.ask(request, 3).results
    assert result.error_code == ErrorCode.INVALID_PARTITIONS


def test_a_deletion_through_a_node_answers_by_name_and_by_id(shared: Play) -> None:
    play = shared
    state = m.DeleteTopicsRequest.DeleteTopicState
    play.create("one", "two")
    two = play.image.topics["two"].id
    states = [state(name="one"), state(name=None, topic_id=two), state(name="none"), state(name="x", topic_id=two)]
    responses = play.ask(m.DeleteTopicsRequest(topics=states, timeout_ms=10_000), 6).responses
    assert sorted((each.name or "", each.error_code) for each in responses) == [
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("one", ErrorCode.NONE),
        ("two", ErrorCode.NONE),
        ("x", ErrorCode.INVALID_REQUEST),
    ]
    again = m.DeleteTopicsRequest(topic_names=["one"], timeout_ms=10_000)
    (result,) = play.ask(again, 5).responses
    assert (result.name, result.error_code) == ("one", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Denied(Call):
    """A call from a client that may not delete topics."""

    @property
    def is_unlimited(self) -> bool:
        return False

    def may(self, operation: Operation, resource: AclResource, name: str) -> bool:
        return operation is not Operation.DELETE

    def demand(self, operation: Operation, resource: AclResource, name: str) -> bool:
        return self.may(operation, resource, name)


def test_a_topic_that_a_node_learns_of_by_catching_up_is_not_deleted_without_the_right(shared: Play) -> None:
    """The id passed the authorization check because this node did not know it. The controller trusts what nodes
    forward.
    """
    play = shared
    play.create("guarded")
    topic_id, no_topic = play.image.topics["guarded"].id, UUID(int=99)
    state = m.DeleteTopicsRequest.DeleteTopicState
    request = m.DeleteTopicsRequest(
        topics=[state(name=None, topic_id=topic_id), state(name=None, topic_id=no_topic)], timeout_ms=5_000
    )
    heard: list[m.DeleteTopicsResponse] = []
    broker = play.cluster.nodes[play.node_id].broker
    access: Any = SimpleNamespace(is_on=True)
    k20_delete_topics.forward(broker.contexts.metadata, Denied(None, 6, "client", access=access), request).then(
        heard.append
    )
    assert play.sim.run_until(lambda: bool(heard), within_ms=20_000)
    assert {each.topic_id: each.error_code for each in heard[0].responses} == {
        topic_id: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        no_topic: ErrorCode.UNKNOWN_TOPIC_ID,
    }
    play.sim.run_for(1_000)
    assert "guarded" in play.image.topics
