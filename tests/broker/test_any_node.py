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


class ThreeNodes:
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
        replies: list[Any] = []
        self.client.send(request, version, replies.append)
        assert self.sim.run_until(lambda: bool(replies), within_ms=20_000)
        return replies[0]

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
def shared() -> ThreeNodes:
    return ThreeNodes()


def test_what_is_changed_through_a_node_is_known_there_when_it_is_answered(shared: ThreeNodes) -> None:
    nodes = shared
    assert nodes.create("pond") == {"pond": ErrorCode.NONE}
    assert "pond" in nodes.image.topics
    assert nodes.alter("pond", "retention.ms", "1234") == ErrorCode.NONE
    assert nodes.image.topic_config("pond")["retention.ms"] == "1234"
    more = m.CreatePartitionsRequest.CreatePartitionsTopic(name="pond", count=5, assignments=None)
    (grown,) = nodes.ask(m.CreatePartitionsRequest(topics=[more], timeout_ms=5_000), 3).results
    assert (grown.error_code, len(nodes.image.topics["pond"].partitions)) == (ErrorCode.NONE, 5)
    by_state = [m.DeleteTopicsRequest.DeleteTopicState(name="doomed")]
    for version, named in ((5, {"topic_names": ["doomed"]}), (6, {"topics": by_state})):
        nodes.create("doomed")
        (deleted,) = nodes.ask(m.DeleteTopicsRequest(timeout_ms=5_000, **named), version).responses
        assert (deleted.error_code, "doomed" in nodes.image.topics) == (ErrorCode.NONE, False)


def test_refusals_come_back_as_the_controller_said_them(shared: ThreeNodes) -> None:
    nodes = shared
    nodes.create("twice")
    assert nodes.create("twice", "__consumer_offsets") == {
        "twice": ErrorCode.TOPIC_ALREADY_EXISTS,
        "__consumer_offsets": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert nodes.create("wide", factor=4) == {"wide": ErrorCode.INVALID_REPLICATION_FACTOR}
    assert nodes.alter("nothing", "retention.ms", "1") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_that_come_into_being_on_the_way_do_so_at_any_node(shared: ThreeNodes) -> None:
    nodes = shared
    named = m.MetadataRequest.MetadataRequestTopic(name="asked-for")
    (topic,) = nodes.ask(m.MetadataRequest(topics=[named], allow_auto_topic_creation=True), 9).topics
    assert (topic.error_code, topic.name) == (ErrorCode.NONE, "asked-for")
    (coordinator,) = nodes.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
    assert coordinator.error_code == ErrorCode.NONE
    assert coordinator.node_id in nodes.cluster.nodes
    replicas = [each.replicas for each in nodes.image.topics["__consumer_offsets"].partitions]
    assert all(len(each) == 3 for each in replicas)
    assert nodes.image.topic_config("__consumer_offsets")["min.insync.replicas"] == "2"


def test_producer_ids_of_different_nodes_differ(shared: ThreeNodes) -> None:
    nodes = shared
    ids = []
    for node_id in nodes.cluster.nodes:
        client = SimClient(nodes.sim.network, f"node{node_id}", PORT, f"producer{node_id}")
        heard: list[Any] = []
        client.send(m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4, heard.append)
        assert nodes.sim.run_until(lambda heard=heard: bool(heard), within_ms=5_000)  # type: ignore[misc]
        ids.append(heard[0].producer_id)
    assert len(set(ids)) == 3


def test_a_request_waits_for_the_next_controller_when_the_last_one_dies() -> None:
    nodes = ThreeNodes()
    controller_id = nodes.cluster.controller_id
    assert controller_id is not None
    nodes.cluster.kill(controller_id)
    assert nodes.create("pond", factor=2) == {"pond": ErrorCode.NONE}
    assert nodes.cluster.controller_id not in (None, controller_id)


def test_a_new_controller_is_not_asked_what_is_committed_before_it_knows() -> None:
    """It answered with the high watermark from before its election. A node that was behind took itself for caught up,
    and told a client that a topic which it had yet to hear of does not exist."""
    nodes = ThreeNodes()
    controller_id = nodes.cluster.controller_id
    assert controller_id is not None
    successor_id = next(each for each in nodes.cluster.nodes if each not in (controller_id, nodes.node_id))
    nodes.cluster.pause(nodes.node_id)
    client = SimClient(nodes.sim.network, f"node{controller_id}", PORT, "other", timeout_ms=20_000)
    replies: list[Any] = []
    client.send(creation("pond", factor=2), 7, replies.append)
    assert nodes.sim.run_until(lambda: bool(replies), within_ms=20_000)
    assert replies[0].topics[0].error_code == ErrorCode.NONE
    for node_id in (controller_id, successor_id):
        nodes.cluster.kill(node_id)
    nodes.cluster.resume(nodes.node_id)
    # Nothing of the successor's epoch is committed before this disk has it.
    nodes.cluster.nodes[nodes.node_id].workers_delay_ms = 200
    assert nodes.cluster.start(successor_id)
    doomed = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    (deleted,) = nodes.ask(m.DeleteTopicsRequest(topics=[doomed], timeout_ms=10_000), 6).responses
    assert (deleted.name, deleted.error_code) == ("pond", ErrorCode.NONE)
    assert nodes.cluster.controller_id == successor_id


def test_a_controller_that_was_paused_does_not_deny_a_topic_that_its_successor_has_created() -> None:
    nodes = ThreeNodes()
    controller_id = nodes.cluster.controller_id
    assert controller_id is not None
    client = SimClient(nodes.sim.network, f"node{controller_id}", PORT, "other", timeout_ms=20_000)
    replies: list[Any] = []
    client.send(m.MetadataRequest(topics=[]), 9, replies.append)
    assert nodes.sim.run_until(lambda: bool(replies), within_ms=5_000)
    nodes.cluster.pause(controller_id)
    assert nodes.create("pond", factor=2) == {"pond": ErrorCode.NONE}
    doomed = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    replies.clear()
    client.send(m.DeleteTopicsRequest(topics=[doomed], timeout_ms=10_000), 6, replies.append)
    nodes.sim.run_for(5)
    nodes.cluster.resume(controller_id)
    assert nodes.sim.run_until(lambda: bool(replies), within_ms=20_000)
    assert replies[0].responses[0].error_code == ErrorCode.NOT_CONTROLLER


def test_a_node_that_leads_no_more_is_not_believed_about_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal has a high watermark, too: 0, which every node has applied."""
    nodes = ThreeNodes()
    broker = nodes.cluster.nodes[nodes.node_id].broker
    ask_node = broker.controller_channel._ask_node
    refusals = [m.DescribeQuorumResponse.PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)]

    def ask(node_id: int, request: m.Message, version: int, timeout_ms: int, change_id: str | None) -> Later[Any]:
        if not refusals:
            return ask_node(node_id, request, version, timeout_ms, change_id)
        topic = m.DescribeQuorumResponse.TopicData(partitions=[refusals.pop()])
        return done(m.DescribeQuorumResponse(topics=[topic]))

    monkeypatch.setattr(broker.controller_channel, "_ask_node", ask)
    replies: list[None] = []
    catch_up(broker.contexts.metadata).then(replies.append)
    assert (refusals, replies) == ([], [])
    assert nodes.sim.run_until(lambda: bool(replies), within_ms=1_000)


def test_a_change_whose_controller_falls_silent_may_still_be_made_and_is_not_told_as_refused() -> None:
    nodes = ThreeNodes()
    for node_id in nodes.cluster.nodes:
        if node_id != nodes.node_id:
            nodes.sim.network.blackhole(f"node{node_id}", f"node{nodes.node_id}")
    assert nodes.create("pond") == {"pond": ErrorCode.REQUEST_TIMED_OUT}


def test_a_node_says_nothing_of_its_cluster_before_it_has_found_it() -> None:
    """librdkafka drops all its brokers when a response lists none. A topic that is not known yet is not a deleted
    topic.
    """
    nodes = ThreeNodes()
    nodes.create("pond")
    for node_id in nodes.cluster.nodes:
        nodes.cluster.kill(node_id)
    assert nodes.cluster.start(nodes.node_id)
    named = m.MetadataRequest.MetadataRequestTopic(name="pond")
    replies: list[Any] = []
    client = SimClient(nodes.sim.network, f"node{nodes.node_id}", PORT, "early", timeout_ms=20_000)
    client.send(m.MetadataRequest(topics=[named]), 9, replies.append)
    assert not nodes.sim.run_until(lambda: bool(replies), within_ms=3_000)
    for node_id in nodes.cluster.nodes:
        if node_id != nodes.node_id:
            assert nodes.cluster.start(node_id)
    assert nodes.sim.run_until(lambda: bool(replies), within_ms=10_000)
    assert [each.error_code for each in replies[0].topics] == [ErrorCode.NONE]
    # The node knows the cluster a moment before it is unfenced itself.
    assert len(replies[0].brokers) >= 2
    assert replies[0].cluster_id


def test_between_two_leaders_a_replica_is_named_as_the_coordinator_one_that_lives_first() -> None:
    """librdkafka hangs for good after three responses without a coordinator."""
    nodes = ThreeNodes()
    request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    coordinator = nodes.ask(request, 4).coordinators[0]
    assert coordinator.error_code == ErrorCode.NONE
    index = nodes.cluster.nodes[nodes.node_id].broker.groups.partition_of("g")
    partitions = nodes.image.topics["__consumer_offsets"].partitions
    other = next(each for each in nodes.cluster.nodes if each != coordinator.node_id)
    partitions[index] = replace(partitions[index], leader=-1, isr=(other,))
    assert nodes.ask(request, 4).coordinators[0].node_id == other
    nodes.image.brokers[other] = replace(nodes.image.brokers[other], fenced=True)
    assert nodes.ask(request, 4).coordinators[0].node_id not in (other, -1)
    for node_id, broker in nodes.image.brokers.items():
        nodes.image.brokers[node_id] = replace(broker, fenced=True)
    assert nodes.ask(request, 4).coordinators[0].node_id == other


def set_quota(nodes: ThreeNodes, entity: tuple[str, str | None], key: str, value: float | None) -> int:
    alter = m.AlterClientQuotasRequest
    entry = alter.EntryData(
        entity=[alter.EntityData(entity_type=entity[0], entity_name=entity[1])],
        ops=[alter.OpData(key=key, value=value or 0.0, remove=value is None)],
    )
    (told,) = nodes.ask(alter(entries=[entry]), 1).entries
    return int(told.error_code)


def test_a_quota_that_is_set_at_one_node_holds_at_all(shared: ThreeNodes) -> None:
    nodes = shared
    brokers = [node.broker for node in nodes.cluster.nodes.values()]
    assert set_quota(nodes, ("client-id", "somebody"), "producer_byte_rate", 5.0) == ErrorCode.NONE
    assert nodes.image.quotas.of, "the node that was asked knows of it"
    assert nodes.sim.run_until(lambda: all(each.quotas.is_on for each in brokers), within_ms=5_000)
    assert set_quota(nodes, ("client-id", "somebody"), "no_such_rate", 5.0) == ErrorCode.INVALID_REQUEST
    assert set_quota(nodes, ("client-id", "somebody"), "producer_byte_rate", None) == ErrorCode.NONE
    assert nodes.sim.run_until(lambda: not any(each.quotas.is_on for each in brokers), within_ms=5_000)


def test_partitions_are_counted_by_the_controller_whichever_node_is_asked(shared: ThreeNodes) -> None:
    nodes = shared
    assert set_quota(nodes, ("client-id", None), "controller_mutation_rate", 0.1) == ErrorCode.NONE
    brokers = [node.broker for node in nodes.cluster.nodes.values()]
    assert nodes.sim.run_until(lambda: all(each.quotas.is_on for each in brokers), within_ms=5_000)
    # One second's worth is 0.1: eleven seconds' worth has accumulated, and the first request may exceed that.
    made = nodes.create("first-of-many", "second-of-many", "__consumer_offsets")
    assert made == {
        "first-of-many": ErrorCode.NONE,
        "second-of-many": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        "__consumer_offsets": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert "second-of-many" not in nodes.image.topics
    for node_id in nodes.cluster.nodes:
        # Over another connection, to any node including the controller.
        client = SimClient(nodes.sim.network, f"node{node_id}", PORT, "client", timeout_ms=20_000)
        heard: list[Any] = []
        topic = m.CreateTopicsRequest.CreatableTopic(name="third", num_partitions=1, replication_factor=3)
        client.send(m.CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 7, heard.append)
        assert nodes.sim.run_until(lambda heard=heard: bool(heard), within_ms=20_000)
        assert heard[0].topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED, node_id
        assert "controller_mutation_rate" in heard[0].topics[0].error_message
        assert heard[0].throttle_time_ms > 1000, "which the controller knows"
        client.disconnect()
    assert "third" not in nodes.image.topics
    assert set_quota(nodes, ("client-id", None), "controller_mutation_rate", None) == ErrorCode.NONE
    assert nodes.create("third") == {"third": ErrorCode.NONE}


# The controller's response is lost, and the node retries.


def lose_response(nodes: ThreeNodes, key: int, *meanwhile: tuple[m.Message, int]) -> None:
    """The next request of this kind that the node forwards is carried out, but its response is lost. Before the node
    retries, another client sends the requests in `meanwhile` to the controller, one after the other."""
    way = nodes.cluster.nodes[nodes.node_id].broker.controller_channel
    ask_node = way._ask_node
    other = SimClient(nodes.sim.network, f"node{nodes.cluster.controller_id}", PORT, "other", timeout_ms=20_000)
    left = list(meanwhile)
    is_lost = False

    def ask(node_id: int, request: m.Message, version: int, timeout_ms: int, change_id: str | None) -> Later[Any]:
        nonlocal is_lost
        if key != request.API_KEY or is_lost:
            return ask_node(node_id, request, version, timeout_ms, change_id)
        is_lost = True
        lost: Later[Any] = Later()

        def go_on(_: Any) -> None:
            if left:
                other.send(*left.pop(0), go_on)
            else:
                lost.fail(RequestLost("lost on the way"))

        # Without its change id, as if the second attempt reached a controller elected in between.
        ask_node(node_id, request, version, timeout_ms, None).then(go_on)
        return lost

    way._ask_node = ask


def creation(name: str, partitions: int = 2, factor: int = 3) -> m.CreateTopicsRequest:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def test_a_repeated_deletion_does_not_delete_a_topic_created_since(shared: ThreeNodes) -> None:
    nodes = shared
    for version, name in ((5, "first"), (6, "second")):
        nodes.create(name)
        before = nodes.image.topics[name].id
        lose_response(nodes, 20, (creation(name), 7))
        named = [m.DeleteTopicsRequest.DeleteTopicState(name=name)]
        request = m.DeleteTopicsRequest(topics=named if version == 6 else [], timeout_ms=10_000)
        request.topic_names = [name] if version < 6 else []
        (result,) = nodes.ask(request, version).responses
        assert (result.name, result.error_code) == (name, ErrorCode.NONE)
        nodes.sim.run_for(2_000)
        assert nodes.image.topics[name].id != before


def test_a_repeated_creation_is_not_refused_for_its_own_first_attempt(shared: ThreeNodes) -> None:
    nodes = shared
    lose_response(nodes, 19)
    (result,) = nodes.ask(creation("mine"), 7).topics
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 2, 3)
    assert result.topic_id == nodes.image.topics["mine"].id
    assert result.configs


def test_a_repeated_creation_is_refused_for_the_topic_of_another(shared: ThreeNodes) -> None:
    nodes = shared
    deletion = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="theirs")], timeout_ms=5_000)
    lose_response(nodes, 19, (deletion, 6), (creation("theirs", partitions=5), 7))
    (result,) = nodes.ask(creation("theirs"), 7).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    nodes.create("there")
    lose_response(nodes, 19)
    (result,) = nodes.ask(creation("there"), 7).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_repeated_creation_with_an_assignment_is_refused_for_a_topic_with_fewer_partitions(
    shared: ThreeNodes,
) -> None:
    """The node compared partition by partition, and the other client's topic had only one: an IndexError."""
    nodes = shared
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
    lose_response(nodes, 19, (deletion, 6), (request(1), 7))
    (result,) = nodes.ask(request(3), 7).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(nodes.image.topics["assigned"].partitions) == 1


def test_a_repeated_growth_is_not_refused_for_its_own_first_attempt(shared: ThreeNodes) -> None:
    nodes = shared
    nodes.create("growing")
    more = m.CreatePartitionsRequest.CreatePartitionsTopic(name="growing", count=5, assignments=None)
    request = m.CreatePartitionsRequest(topics=[more], timeout_ms=10_000)
    lose_response(nodes, 37)
    (result,) = nodes.ask(request, 3).results
    assert (result.error_code, len(nodes.image.topics["growing"].partitions)) == (ErrorCode.NONE, 5)
    lose_response(nodes, 37)
    (result,) = nodes.ask(request, 3).results
    assert result.error_code == ErrorCode.INVALID_PARTITIONS


def test_a_deletion_through_a_node_answers_by_name_and_by_id(shared: ThreeNodes) -> None:
    nodes = shared
    state = m.DeleteTopicsRequest.DeleteTopicState
    nodes.create("one", "two")
    two = nodes.image.topics["two"].id
    states = [state(name="one"), state(name=None, topic_id=two), state(name="none"), state(name="x", topic_id=two)]
    responses = nodes.ask(m.DeleteTopicsRequest(topics=states, timeout_ms=10_000), 6).responses
    assert sorted((each.name or "", each.error_code) for each in responses) == [
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("one", ErrorCode.NONE),
        ("two", ErrorCode.NONE),
        ("x", ErrorCode.INVALID_REQUEST),
    ]
    again = m.DeleteTopicsRequest(topic_names=["one"], timeout_ms=10_000)
    (result,) = nodes.ask(again, 5).responses
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


def test_a_topic_that_a_node_learns_of_by_catching_up_is_not_deleted_without_the_right(shared: ThreeNodes) -> None:
    """The id passed the authorization check because this node did not know it. The controller trusts what nodes
    forward.
    """
    nodes = shared
    nodes.create("guarded")
    topic_id, no_topic = nodes.image.topics["guarded"].id, UUID(int=99)
    state = m.DeleteTopicsRequest.DeleteTopicState
    request = m.DeleteTopicsRequest(
        topics=[state(name=None, topic_id=topic_id), state(name=None, topic_id=no_topic)], timeout_ms=5_000
    )
    replies: list[m.DeleteTopicsResponse] = []
    broker = nodes.cluster.nodes[nodes.node_id].broker
    access: Any = SimpleNamespace(is_on=True)
    k20_delete_topics.forward(broker.contexts.metadata, Denied(None, 6, "client", access=access), request).then(
        replies.append
    )
    assert nodes.sim.run_until(lambda: bool(replies), within_ms=20_000)
    assert {each.topic_id: each.error_code for each in replies[0].responses} == {
        topic_id: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        no_topic: ErrorCode.UNKNOWN_TOPIC_ID,
    }
    nodes.sim.run_for(1_000)
    assert "guarded" in nodes.image.topics
