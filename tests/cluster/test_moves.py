"""Partitions of a real cluster move to other nodes: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest

from millpond.admin.moves import moves_under_way, try_moves
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Ponds, ponds

SETTINGS = {"log.segment.delete.delay.ms": 0, "offsets.topic.num.partitions": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ponds]:
    with ponds(nodes=4, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def remote(cluster: Ponds) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": cluster.bootstrap}) as opened:
        yield opened


def within(seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def move(remote: Cluster, topic: str, *replicas: int, index: int = 0) -> None:
    """Move a partition, and wait for the move to complete."""
    assert try_moves(remote, {TopicPartition(topic, index): replicas}) == {}
    within(30, lambda: not moves_under_way(remote))
    # The controller has confirmed it; the node that is asked here may learn of it a moment later.
    within(10, lambda: replicas_of(remote, topic, index) == replicas)


def replicas_of(remote: Cluster, topic: str, index: int = 0) -> tuple[int, ...]:
    return remote.topics([topic])[topic].partitions[index].replicas


def folders(cluster: Ponds, topic: str) -> list[int]:
    """The nodes that have a folder of the topic."""
    return [node.node_id for node in cluster if (node.folder / f"{topic}-0").exists()]


def values(cluster: Ponds, topic: str, count: int) -> list[bytes | None]:
    return [message.value for message in cluster.consume(topic, count, timeout=30)]


def test_a_partition_goes_to_other_nodes_with_its_records_and_leaves_nothing(cluster: Ponds, remote: Cluster) -> None:
    topic = "moved"
    way_out, way_in = (1, 2, 3), (4, 2)
    cluster.create_topic(topic)
    move(remote, topic, *way_out)
    cluster.produce(topic, *(f"before-{each}" for each in range(50)))
    move(remote, topic, *way_in)
    assert remote.topics([topic])[topic].partitions[0].leader in way_in
    cluster.forget_clients()
    cluster.produce(topic, "after")
    assert values(cluster, topic, 51) == [*(f"before-{each}".encode() for each in range(50)), b"after"]
    within(10, lambda: folders(cluster, topic) == [2, 4])
    # And back: what was deleted is fetched from the leader again.
    move(remote, topic, 1, 3, 4)
    cluster.wait_until_in_sync(topic)
    assert len(values(cluster, topic, 51)) == 51
    within(10, lambda: folders(cluster, topic) == [1, 3, 4])


def test_groups_go_on_where_their_partition_goes(cluster: Ponds, remote: Cluster) -> None:
    topic = "read"
    cluster.create_topic(topic)
    cluster.produce(topic, *(f"{each}" for each in range(10)))
    consumer = cluster.consumer("readers")
    consumer.subscribe([topic])
    assert len(consumer.consume(5, timeout=20)) == 5
    consumer.commit(asynchronous=False)
    offsets = remote.topics(["__consumer_offsets"])["__consumer_offsets"].partitions
    for index, info in offsets.items():
        away = next(each for each in (1, 2, 3, 4) if each not in info.replicas)
        move(remote, "__consumer_offsets", away, *info.replicas[1:], index=index)
    assert [each.value() for each in consumer.consume(5, timeout=30)] == [f"{each}".encode() for each in range(5, 10)]
    consumer.commit(asynchronous=False)
    consumer.close()


def test_who_only_looks_at_offsets_finds_them_where_their_partition_goes(cluster: Ponds, remote: Cluster) -> None:
    """librdkafka without a member: no heartbeat shows it that the node is no longer its group's coordinator."""
    topic, group = "looked-at", "lookers"
    cluster.create_topic(topic)
    offset = confluent_kafka.TopicPartition(topic, 0, 7)
    looker = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        within(20, lambda: is_committed(looker, offset))
        assert looker.committed([offset], timeout=10)[0].offset == 7
        offsets = remote.topics(["__consumer_offsets"])["__consumer_offsets"].partitions
        for index, info in offsets.items():
            others = [each for each in (1, 2, 3, 4) if each != info.leader]
            move(remote, "__consumer_offsets", *others[: len(info.replicas)], index=index)
        assert looker.committed([offset], timeout=10)[0].offset == 7
    finally:
        looker.close()


def is_committed(consumer: confluent_kafka.Consumer, offset: confluent_kafka.TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[offset], asynchronous=False)
    except confluent_kafka.KafkaException:
        return False
    return True


def test_the_command_line_gives_a_topic_more_replicas_and_other_nodes(cluster: Ponds, remote: Cluster) -> None:
    cluster.create_topic("told", 2, replicas=1)
    cluster.produce("told", "one", partition=1)

    def millpond(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())", "topic"]
        return subprocess.run(
            [*command, *words, "--yes", "-b", cluster.bootstrap],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    grown = millpond("replicas", "told", "--factor", "3")
    assert (grown.returncode, grown.stdout.splitlines()[-1]) == (0, "Moved 2 partitions.")
    within(10, lambda: [len(replicas_of(remote, "told", index)) for index in (0, 1)] == [3, 3])
    moved = millpond("move", "told", "--partition", "1", "--to", "4,1")
    assert (moved.returncode, moved.stdout.splitlines()[-1]) == (0, "Moved 1 partition.")
    within(10, lambda: replicas_of(remote, "told", 1) == (4, 1))
    assert millpond("move", "told", "--partition", "1", "--to", "4,1").stdout == "Everything is in place already.\n"
    refused = millpond("move", "told", "--to", "7")
    assert refused.returncode != 0
    assert "There is no node 7 now; there are 1, 2, 3, 4." in refused.stderr
    cluster.forget_clients()
    assert values(cluster, "told", 1) == [b"one"]
