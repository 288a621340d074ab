"""The topic of decisions, for processes that have read it before and for new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from millpond.base.ids import TopicPartition
from millpond.client.errors import Fenced
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClusterError
from millpond.remote.transactions import ProducerIdentity, add_partitions, end, init_producer
from millpond.remote.writer import BatchWriter
from millpond.spark.sink import decisions
from millpond.spark.sink.decisions import PARTITIONS, TOPIC, Decision, DecisionLog, Part
from millpond.wire.batch import HEADER_BYTES
from millpond.wire.records import Record, encode_batch
from support.node import Node
from support.topics import delete_topic

PART = Part(3, 12, "abc", ProducerIdentity("spark.q.3", 7, 2), (("t", 0, 40), ("t", 1, 0)))


@pytest.fixture
def cluster(node: Node) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": node.bootstrap}) as made:
        yield made


def decide(log: DecisionLog, owner: str, batch: int) -> Decision:
    made = Decision(owner, batch, (PART,))
    log.record(log.take_over(owner), made)
    return made


def test_a_decision_reads_back_as_it_was_written() -> None:
    made = Decision("q", 5, (PART, Part(4, 0, "")), "orders", "run")
    same = Decision("q", 5, (PART,), "orders", "run")
    assert Decision.from_json("q", made.to_json()) == same, "without those that have none"
    with pytest.raises(ClusterError, match="in format 9, this Millpond reads 2"):
        Decision.from_json("q", b'{"format":9}')


def test_every_process_finds_the_newest_decision(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecisionLog(cluster)
    owners = [str(uuid4()) for _ in range(2 * PARTITIONS)]
    assert log.find(owners[0]) is None
    for batch in range(3):
        expected = {owner: decide(log, owner, batch) for owner in owners}
        assert {owner: log.find(owner) for owner in owners} == expected
    assert set(cluster.topic(TOPIC).partitions) == set(range(PARTITIONS))
    # Like a new process.
    monkeypatch.setattr(decisions, "_states", {})
    assert {owner: log.find(owner) for owner in owners} == expected


def test_only_new_decisions_are_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecisionLog(cluster)
    owner = str(uuid4())
    decide(log, owner, 0)
    log.find(owner)
    starts: list[int] = []
    read_range = decisions.read_range

    def noted(cluster: Cluster, partition: TopicPartition, start: int, end: int, **options: object) -> object:
        starts.append(start)
        return read_range(cluster, partition, start, end, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(decisions, "read_range", noted)
    newest = decide(log, owner, 1)
    assert log.find(owner) == newest
    assert starts[-1] > 0


def test_a_replaced_decider_cannot_record(cluster: Cluster) -> None:
    log = DecisionLog(cluster)
    owner = str(uuid4())
    older = log.take_over(owner)
    newest = decide(log, owner, 8)
    with pytest.raises(Fenced):
        log.record(older, Decision(owner, 9, (PART,)))
    assert log.find(owner) == newest


def test_a_decision_behind_another_open_transaction_is_awaited(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DecisionLog(cluster)
    owner = str(uuid4())
    decide(log, owner, 0)
    partition, _ = log._partition_of(owner)
    stranger = init_producer(cluster, f"stranger-{owner}", 60_000)
    with BatchWriter(cluster, transactional=stranger) as writer:
        writer.append(partition, encode_batch([Record(0, 1, b"x", b"y")])[HEADER_BYTES:], 1, 1, 1)
        writer.flush()
    newest = decide(log, owner, 1)
    monkeypatch.setattr(decisions, "SETTLED_SECONDS", 0.1)
    with pytest.raises(ClusterError, match=r"a transaction in __millpond_spark\[\d\] has been open"):
        log.find(owner)
    end(cluster, stranger, commit=False)
    assert log.find(owner) == newest


def test_a_recreated_topic_of_decisions_is_read_from_its_start(make_node: Callable[..., Node]) -> None:
    node = make_node({"transaction.state.log.num.partitions": "4"})
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        log = DecisionLog(cluster)
        for batch in range(3):
            decide(log, "q", batch)
        assert log.find("q") == Decision("q", 2, (PART,))
        delete_topic(node.bootstrap, TOPIC)
        assert log.find("q") is None
        assert decide(log, "q", 0) == log.find("q")


def test_an_empty_transaction_does_not_block_readers(cluster: Cluster) -> None:
    """A transaction that only added a partition does not delay readers."""
    log = DecisionLog(cluster)
    owner = str(uuid4())
    identity = log.take_over(owner)
    partition, _ = log._partition_of(owner)
    add_partitions(cluster, identity, [partition])
    assert log.find(owner) is None
