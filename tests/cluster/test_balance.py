"""An empty node gets its share of partitions under load: nothing is lost, duplicated or reordered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from millpond.admin.balance import shares
from millpond.admin.moves import moves_under_way, read_placement, try_moves
from millpond.admin.placement import plan_move
from millpond.admin.waves import run_moves
from millpond.base.ids import TopicPartition
from millpond.cli.stop import Stop
from millpond.remote.cluster import Cluster
from millpond.testing import Ponds, ponds
from support.cluster_check import Findings, check_reads, check_topic, located
from support.cluster_load import Reader, Writer, commit_beginning, read_topic
from support.patience import with_time
from support.steady_load import SteadyLoad

TOPIC = "shared"
PARTITIONS = 8
GROUP = "readers"
SETTINGS = {"offsets.topic.num.partitions": 4}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ponds]:
    with ponds(nodes=4, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def remote(cluster: Ponds) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": cluster.bootstrap}) as opened:
        yield opened


def balance(cluster: Ponds, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())"]
    return subprocess.run(
        [*command, "cluster", "balance", "-b", cluster.bootstrap, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def within(seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def apart(amounts: list[int]) -> int:
    return max(amounts) - min(amounts)


def leave_to(remote: Cluster, *nodes: int) -> None:
    """Move everything to these nodes, so that the others are as empty as new ones."""
    targets = {}
    for name, topic in remote.topics().items():
        for index, each in topic.partitions.items():
            at = index % len(nodes)
            targets[TopicPartition(name, index)] = (*nodes[at:], *nodes[:at])[: len(each.replicas)]
    assert try_moves(remote, targets) == {}
    within(60, lambda: not moves_under_way(remote))

    def are_there() -> bool:
        there = read_placement(remote).partitions
        return all(there[each].replicas == target for each, target in targets.items())

    within(10, are_there)


def test_an_empty_node_gets_its_share_under_load(cluster: Ponds, remote: Cluster) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    commit_beginning(cluster.bootstrap, TOPIC, GROUP, PARTITIONS)
    leave_to(remote, 1, 2, 3)
    findings = Findings()
    writer = Writer(cluster.bootstrap, TOPIC, PARTITIONS, 1)
    reader = Reader(cluster.bootstrap, TOPIC, GROUP, "cooperative-sticky", findings)
    for thread in (writer, reader):
        thread.start()
    try:
        within(30, lambda: len(writer.acks) > 200)
        output = balance(cluster, "--dry-run", "--rate", "50MB/s", "--measure", "0s")
        assert output.returncode == 0, output.stderr
        assert "or more at 50 MB/s a node." in output.stdout
        there = {node for each in read_placement(remote).of_topic(TOPIC).values() for node in each.replicas}
        assert there == {1, 2, 3}, "nothing moves before it is confirmed"
        done = balance(cluster, "--yes", "--rate", "50MB/s", "--measure", "0s", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert sorted(told["moved"]) == sorted(f"{each['topic']}-{each['partition']}" for each in told["moves"])
        assert apart([each.replicas for each in shares(read_placement(remote)).values()]) <= 1
        # The node that is asked may learn of the last election a moment later.
        within(10, lambda: apart([each.leads for each in shares(read_placement(remote)).values()]) <= 1)
        again = balance(cluster, "--yes", "--measure", "0s")
        assert (again.returncode, again.stdout) == (0, "The cluster is balanced: there is nothing to move.\n")
    finally:
        writer.stop()
    log = read_topic(cluster.bootstrap, TOPIC, PARTITIONS)
    acks = located(writer.acks, log)
    check_topic(acks, log, findings)
    ends = {(index, records[-1][0]) for index, records in log.items()}
    within(60, lambda: ends <= set(reader.read))
    reader.stop()
    check_reads(GROUP, acks, reader.read, findings)
    assert not findings, str(findings)
    assert not writer.failures


def test_busy_partitions_are_led_by_different_nodes(cluster: Ponds, remote: Cluster) -> None:
    cluster.create_topic("busy", 4)
    assert run_moves(remote, plan_move(read_placement(remote), "busy", (), (1, 2, 3)), stop=Stop()).is_done
    within(30, lambda: {each.leader for each in read_placement(remote).of_topic("busy").values()} == {1})
    writer = Writer(cluster.bootstrap, "busy", 2, 1, per_round=20)
    writer.start()
    try:
        within(30, lambda: len(writer.acks) > 200)
        done = balance(cluster, "--leaders", "--measure", "5s", "--yes", "--json")
    finally:
        writer.stop()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes_to_copy"] == 0

    def leaders_differ() -> bool:
        there = read_placement(remote).of_topic("busy")
        return there[TopicPartition("busy", 0)].leader != there[TopicPartition("busy", 1)].leader

    # The node that is asked may learn of the last election a moment later.
    within(60, leaders_differ)
    after = read_placement(remote).of_topic("busy")
    assert {frozenset(each.replicas) for each in after.values()} == {frozenset((1, 2, 3))}


@with_time
def test_clients_notice_little_of_a_balance_at_a_rate() -> None:
    """How long writes take meanwhile, compared with an idle cluster: printed, and described in docs/operations.md."""
    with ponds(nodes=4) as cluster, Cluster({"bootstrap.servers": cluster.bootstrap}) as remote:
        cluster.create_topic("ballast", 8)
        load = SteadyLoad(cluster.bootstrap)
        leave_to(remote, 1, 2, 3)
        for index in range(8):
            cluster.produce("ballast", *(os.urandom(500_000) for _ in range(16)), partition=index)
        load.start()
        done = balance(cluster, "--yes", "--rate", "10MB/s", "--measure", "0s", "--json")
        report = load.stop()
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        print(f"balance of {told['bytes_to_copy'] / 1e6:.0f} MB at 10 MB/s: {report}")
        report.check()
        assert told["bytes_to_copy"] > 20e6
        assert apart([each.replicas for each in shares(read_placement(remote)).values()]) <= 1
