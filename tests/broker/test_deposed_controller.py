"""A controller that was paused while another one was elected must not answer from its old metadata.

What it writes is never committed. What it would answer without a record waits for proof that it still leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.metadata.topics import METADATA_TOPIC
from millpond.sim.clients.client import SimClient
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.history.records import History
from millpond.sim.node import PORT
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire import model

TOPIC = 2
"""The resource type."""

SCRAM_SHA_256 = 1


def creation(name: str, *, is_dry: bool = False) -> m.CreateTopicsRequest:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=2)
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=is_dry)


def deletion(name: str) -> m.DeleteTopicsRequest:
    state = m.DeleteTopicsRequest.DeleteTopicState(name=name)
    return m.DeleteTopicsRequest(topics=[state], timeout_ms=10_000)


def config_change(topic: str) -> m.IncrementalAlterConfigsRequest:
    config = m.IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="1234")
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC, resource_name=topic, configs=[config]
    )
    return m.IncrementalAlterConfigsRequest(resources=[resource])


def replacement(topic: str) -> m.AlterConfigsRequest:
    resource = m.AlterConfigsRequest.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=[])
    return m.AlterConfigsRequest(resources=[resource])


def growth(topic: str) -> m.CreatePartitionsRequest:
    more = m.CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=2, assignments=None)
    return m.CreatePartitionsRequest(topics=[more], timeout_ms=10_000)


def election(topic: str, kind: int) -> m.ElectLeadersRequest:
    partitions = m.ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])
    return m.ElectLeadersRequest(election_type=kind, topic_partitions=[partitions], timeout_ms=10_000)


def move(topic: str) -> m.AlterPartitionReassignmentsRequest:
    partition = m.AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=None)
    moved = m.AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[partition])
    return m.AlterPartitionReassignmentsRequest(topics=[moved], timeout_ms=10_000)


def removed_user(name: str) -> m.AlterUserScramCredentialsRequest:
    gone = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=SCRAM_SHA_256)
    return m.AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[])


def quorum() -> m.DescribeQuorumRequest:
    partition = m.DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = m.DescribeQuorumRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return m.DescribeQuorumRequest(topics=[topic])


REQUESTS: dict[str, tuple[m.Message, int]] = {
    "CreateTopics": (creation("old"), 7),
    "CreateTopics, validate only": (creation("old", is_dry=True), 7),
    "DeleteTopics": (deletion("new"), 6),
    "CreatePartitions": (growth("new"), 3),
    "IncrementalAlterConfigs": (config_change("new"), 1),
    "IncrementalAlterConfigs without a change": (config_change("old"), 1),
    "AlterConfigs": (replacement("new"), 2),
    "ElectLeaders, preferred": (election("new", 0), 2),
    "ElectLeaders, unclean": (election("new", 1), 2),
    "AlterPartitionReassignments": (move("new"), 0),
    "ListPartitionReassignments": (m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000), 0),
    "AlterUserScramCredentials": (removed_user("ann"), 0),
    "UnregisterBroker": (m.UnregisterBrokerRequest(broker_id=9), 0),
    "AddRaftVoter": (m.AddRaftVoterRequest(cluster_id=None, voter_id=9, timeout_ms=10_000), 0),
    "UpdateFeatures": (
        m.UpdateFeaturesRequest(
            timeout_ms=10_000,
            feature_updates=[
                m.UpdateFeaturesRequest.FeatureUpdateKey(feature="nothing", max_version_level=1, upgrade_type=1)
            ],
        ),
        2,
    ),
}


class PausedController:
    """Three nodes, and the topic `old`."""

    def __init__(self) -> None:
        self.sim = SimWorld(7)
        self.cluster = SimCluster(self.sim, 3, History())
        for node_id in self.cluster.nodes:
            assert self.cluster.start(node_id)
        assert self.sim.run_until(self._is_founded, within_ms=30_000)
        controller_id = self.cluster.controller_id
        assert controller_id is not None
        self.deposed_id: int = controller_id
        other_id = next(each for each in self.cluster.nodes if each != controller_id)
        self._at_other = self._client_of(other_id)
        self._at_deposed = self._client_of(self.deposed_id)
        self._ask(self._at_other, creation("old"), 7)
        self._ask(self._at_other, config_change("old"), 1)
        # Connect.
        self._ask(self._at_deposed, m.MetadataRequest(topics=[]), 9)

    def _is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def _client_of(self, node_id: int) -> SimClient:
        return SimClient(self.sim.network, f"node{node_id}", PORT, f"client of {node_id}", timeout_ms=30_000)

    def _ask(self, client: SimClient, request: m.Message, version: int) -> Any:
        answers: list[Any] = []
        client.send(request, version, answers.append)
        assert self.sim.run_until(lambda: bool(answers), within_ms=20_000)
        return answers[0]

    def ask_deposed(self, request: m.Message, version: int) -> Any:
        """Pause the controller, let its successor delete `old` and create `new`, and resume it.

        It reads this request before anything from its successor.
        """
        answers: list[Any] = []
        self.cluster.pause(self.deposed_id)
        self._at_deposed.send(request, version, answers.append)
        self.sim.run_for(5)
        self.replace_topic()
        self.cluster.resume(self.deposed_id)
        assert self.sim.run_until(lambda: bool(answers), within_ms=20_000)
        return answers[0]

    def replace_topic(self) -> None:
        self._ask(self._at_other, creation("new"), 7)
        self._ask(self._at_other, deletion("old"), 6)


def error_codes(response: Any) -> Iterator[int]:
    if isinstance(response, list):
        for each in response:
            yield from error_codes(each)
    elif isinstance(response, model.Struct):
        for name in response._names:
            yield from [response.error_code] if name == "error_code" else error_codes(getattr(response, name))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_deposed_controller_refuses_nothing_and_confirms_nothing(name: str) -> None:
    request, version = REQUESTS[name]
    response = PausedController().ask_deposed(request, version)
    assert {each for each in error_codes(response) if each} == {ErrorCode.NOT_CONTROLLER}


def test_a_deposed_controller_does_not_say_what_is_committed() -> None:
    """A node that follows it would take itself for caught up, and answer from metadata as old as that."""
    (topic,) = PausedController().ask_deposed(quorum(), 1).topics
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
