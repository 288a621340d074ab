"""Secure brokers for tests: one, and a cluster; each with the clients that people write."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClusterError
from millpond.testing import Pond, Ponds

pytestmark = pytest.mark.boundary


@pytest.mark.smoke
@pytest.mark.parametrize(("mode", "secure"), [("thread", True), ("process", True), ("thread", "certificates")])
def test_a_secure_broker_serves_only_its_own_clients(mode: Any, secure: Any) -> None:
    with Pond(mode=mode, secure=secure) as pond:
        topic = pond.new_topic()
        pond.produce(topic, "tea")
        assert pond.consume(topic)[0].value == b"tea"
        stranger = AdminClient({"bootstrap.servers": pond.bootstrap, "log_level": 0, "error_cb": lambda _: None})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=2)
        in_the_clear = {"bootstrap.servers": pond.bootstrap, "default.api.timeout.ms": "1000"}
        with pytest.raises(ClusterError), Cluster(in_the_clear) as cluster:
            cluster.topics()
        pond.kill()
        pond.start()
        assert pond.consume(topic)[0].value == b"tea"


@pytest.mark.slow
@pytest.mark.parametrize("secure", [True, "certificates"])
def test_a_secure_cluster_goes_on_without_a_node(secure: Any) -> None:
    with Ponds(3, secure=secure) as cluster:
        topic = cluster.new_topic(partitions=3)
        cluster.produce(topic, "one", "two", "three")
        leader = cluster.leader(topic)
        leader.kill()
        cluster.forget_clients()
        cluster.produce(topic, "four")
        assert {each.value for each in cluster.consume(topic, 4, timeout=30)} == {b"one", b"two", b"three", b"four"}
        leader.start()
        cluster.wait_until_in_sync(topic)
        stranger = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "error_cb": lambda _: None})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=2)
