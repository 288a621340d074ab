"""Kafka's own tool moves partitions: it plans, throttles, monitors, cancels and cleans up."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.admin.moves import moves_under_way, try_moves
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Ponds, ponds
from millpond.wire import messages as m
from support.kafka_tools import kafka_tool, run_tool
from support.patience import with_time

pytestmark = with_time

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTION_TOOL = "org.apache.kafka.tools.LeaderElectionCommand"
RATE = 200_000
TOPIC = "carried"


@pytest.fixture(scope="module")
def tool() -> list[str]:
    return kafka_tool(TOOL)


@pytest.fixture(scope="module")
def cluster(tool: list[str]) -> Iterator[Ponds]:
    with ponds(nodes=3) as made:
        yield made


@pytest.fixture
def remote(cluster: Ponds) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": cluster.bootstrap}) as opened:
        yield opened


def written(folder: Path, topic: str, replicas: list[int]) -> Path:
    """A plan in the format that the tool reads."""
    wanted = {"topic": topic, "partition": 0, "replicas": replicas}
    (folder / "plan.json").write_text(json.dumps({"partitions": [wanted], "version": 1}))
    return folder / "plan.json"


def throttles(remote: Cluster) -> list[str]:
    """The names of all replication throttles in effect."""
    kind = m.DescribeConfigsRequest
    resources = [(2, TOPIC), *((4, str(node)) for node in remote.addresses())]
    wanted = [
        kind.DescribeConfigsResource(resource_type=each, resource_name=name, configuration_keys=None)
        for each, name in resources
    ]
    found = []
    for resource in wanted:
        # Each node answers for its own settings.
        broker = remote.broker(int(resource.resource_name)) if resource.resource_type == 4 else remote.any()
        (result,) = broker.ask(kind(resources=[resource]), m.DescribeConfigsResponse).results
        found += [each.name for each in result.configs if "throttled" in each.name and each.config_source in (1, 2)]
    return found


def test_a_partition_is_moved_throttled_and_verified(
    tool: list[str], cluster: Ponds, remote: Cluster, tmp_path: Path
) -> None:
    cluster.create_topic(TOPIC, 1, replicas=1)
    cluster.produce(TOPIC, *(os.urandom(1000) for _ in range(600)))
    (before,) = remote.topics([TOPIC])[TOPIC].partitions.values()
    target = [node for node in (1, 2, 3) if node not in before.replicas]
    plan = written(tmp_path, TOPIC, target)
    began = time.monotonic()
    words = ("--reassignment-json-file", str(plan))
    told = run_tool(tool, cluster, *words, "--execute", "--throttle", str(RATE))
    assert "Successfully started partition reassignment" in told
    assert throttles(remote)
    assert moves_under_way(remote), "600 kB to each of two nodes at 200 kB/s take seconds"
    while moves_under_way(remote):
        assert time.monotonic() < began + 60
        time.sleep(0.1)
    assert time.monotonic() - began > 2, "it was held back"
    told = run_tool(tool, cluster, *words, "--verify")
    assert f"Reassignment of partition {TOPIC}-0 is completed." in told
    assert throttles(remote) == []
    while [*remote.topics([TOPIC])[TOPIC].partitions[0].replicas] != target:
        # The node that is asked may learn of it a moment after the controller.
        assert time.monotonic() < began + 60
    cluster.forget_clients()
    assert len(cluster.consume(TOPIC, 600, timeout=30)) == 600


def test_a_move_is_called_off(tool: list[str], cluster: Ponds, remote: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("stays", 1, replicas=2)
    cluster.produce("stays", os.urandom(1000))
    (before,) = remote.topics(["stays"])["stays"].partitions.values()
    (other,) = {1, 2, 3} - {*before.replicas}
    words = ("--reassignment-json-file", str(written(tmp_path, "stays", [other, before.replicas[1]])))
    run_tool(tool, cluster, *words, "--execute", "--throttle", "1")
    assert "stays-0: replicas: " in run_tool(tool, cluster, "--list")
    assert "is still in progress" in run_tool(tool, cluster, *words, "--verify", "--preserve-throttles")
    assert "Successfully cancelled partition reassignment for: stays-0" in run_tool(tool, cluster, *words, "--cancel")
    assert moves_under_way(remote) == {}
    assert throttles(remote) == []
    assert {*remote.topics(["stays"])["stays"].partitions[0].replicas} == {*before.replicas}


def test_the_first_replica_leads_when_kafkas_tool_says_so(tool: list[str], cluster: Ponds, remote: Cluster) -> None:
    cluster.create_topic("led", 1, replicas=3)
    cluster.wait_until_in_sync("led")
    (before,) = remote.topics(["led"])["led"].partitions.values()
    first = next(node for node in before.replicas if node != before.leader)
    others = [node for node in before.replicas if node != first]
    assert try_moves(remote, {TopicPartition("led", 0): (first, *others)}) == {}
    words = ("--election-type", "preferred", "--topic", "led", "--partition", "0")
    told = run_tool([*tool[:-1], ELECTION_TOOL], cluster, *words)
    assert "Successfully completed leader election (PREFERRED) for partitions led-0" in told
    deadline = time.monotonic() + 10
    while remote.topics(["led"])["led"].partitions[0].leader != first:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "Valid replica already elected for partitions led-0" in run_tool(
        [*tool[:-1], ELECTION_TOOL], cluster, *words
    )
