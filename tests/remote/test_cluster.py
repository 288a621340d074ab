"""Finding brokers, leaders and coordinators, and errors."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from millpond.base.errors import ErrorCode
from millpond.client.errors import ConfigError, UnknownTopic
from millpond.remote.bootstrap import Address
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Answered, ClusterError, Unreachable
from millpond.wire import messages as m
from support.node import Node, free_port
from support.topics import add_partitions, create_topic


@pytest.mark.smoke
def test_topics_are_described_and_missing_ones_left_out(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 3)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        result = cluster.topics([topic, "no-such-topic"])
        assert set(result) == {topic}
        assert sorted(result[topic].partitions) == [0, 1, 2]
        assert result[topic].topic_id.int != 0
        assert topic in cluster.topics()
        assert cluster.topic(topic) == result[topic]
        assert cluster.leader(topic, 2).port == node.port
        assert cluster.coordinator("group", "g").port == node.port
        assert [each.port for each in cluster.brokers()] == [node.port]


def test_a_missing_topic_or_partition_says_what_to_do(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        with pytest.raises(UnknownTopic, match="millpond topic create gone"):
            cluster.leader("gone", 0)
        with pytest.raises(UnknownTopic, match="no partition 7"):
            cluster.leader(topic, 7)


def test_an_added_partition_is_found(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        assert cluster.leader(topic, 0).port == node.port
        add_partitions(node.bootstrap, topic, 3)
        assert cluster.leader(topic, 2).port == node.port


def test_the_first_address_that_answers_is_enough(node: Node) -> None:
    with Cluster({"bootstrap.servers": f"127.0.0.1:{free_port()}, {node.bootstrap}"}) as cluster:
        assert cluster.any().port == node.port


def test_a_node_that_comes_back_is_found_again(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node()
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        assert cluster.topics([topic])
        node.restart(crash=True)
        assert cluster.topics([topic])


def test_a_retry_does_not_use_the_lost_leader(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        (leader,) = cluster.addresses()
        cluster.topic(topic)
        cluster._brokers[leader] = Address("127.0.0.1", free_port())
        assert cluster.retrying("find the leader", lambda: cluster.leader(topic, 0), seconds=10).port == node.port


def test_an_unreachable_cluster_is_given_up_in_time() -> None:
    settings = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "default.api.timeout.ms": "300"}
    begun = time.monotonic()
    with (
        Cluster(settings) as cluster,
        pytest.raises(ClusterError, match="gave up trying to ask for the topics") as raised,
    ):
        cluster.topics()
    assert isinstance(raised.value.__cause__, Unreachable)
    assert time.monotonic() - begun < 30, "by itself it would try for a minute"


def test_temporary_errors_are_retried_and_others_raised(node: Node) -> None:
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        faults = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT]

        def action() -> str:
            if faults:
                raise Answered("it", faults.pop())
            return "done"

        assert cluster.retrying("do it", action) == "done"
        faults = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        with pytest.raises(Answered, match="ask for the right to"):
            cluster.retrying("do it", action)
        tries = []

        def unknown() -> None:
            tries.append(1)
            raise Answered("it", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        with pytest.raises(Answered):
            cluster.retrying("do it", unknown)
        assert len(tries) == 6


@pytest.mark.parametrize("text", ["nowhere", "host:port", ",", "host:"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        Cluster({"bootstrap.servers": text})


def test_an_invalid_timeout_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"request\.timeout\.ms=soon"):
        Cluster({"bootstrap.servers": "h:1", "request.timeout.ms": "soon"})


def test_coordinator_requests_use_a_separate_connection(node: Node, topic: str) -> None:
    """Otherwise its response would wait behind those of the leader."""
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        leader = cluster.leader(topic, 0)
        leader.send(m.MetadataRequest(topics=[]), m.MetadataResponse)
        coordinator = cluster.coordinator("transaction", "t")
        assert coordinator.ask(m.MetadataRequest(topics=[]), m.MetadataResponse).brokers
        assert leader.receive(m.MetadataResponse).brokers
