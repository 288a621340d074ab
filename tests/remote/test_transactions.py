"""Transactions that one process writes and another ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from millpond.base.ids import TopicPartition
from millpond.client.errors import ClientError, Fenced
from millpond.remote.cluster import Cluster
from millpond.remote.transactions import (
    Fate,
    Outcome,
    ProducerIdentity,
    TransactionLost,
    add_partitions,
    describe,
    end,
    end_all,
    fate,
    init_producer,
    list_open,
)
from millpond.remote.writer import BatchWriter
from millpond.wire.batch import HEADER_BYTES
from millpond.wire.records import Record, encode_batch
from support.node import Node, eventually
from support.raw import Raw
from support.raw_transactions import NODE_SETTINGS, committed_values
from support.topics import create_topic, delete_records

TIMEOUT_MS = 60_000


@pytest.fixture
def cluster(node: Node) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": node.bootstrap}) as made:
        yield made


def fill(cluster: Cluster, identity: ProducerIdentity, topic: str, *values: bytes) -> int:
    """Write into partition 0; the offset of the first."""
    batch = encode_batch([Record(number, 1, None, value) for number, value in enumerate(values)])
    with BatchWriter(cluster, transactional=identity) as writer:
        writer.append(TopicPartition(topic, 0), batch[HEADER_BYTES:], len(values), 1, 1)
        writer.flush()
        return writer.first_offsets[TopicPartition(topic, 0)]


@pytest.mark.parametrize("commit", [True, False])
def test_ending_again_gets_the_same_result(cluster: Cluster, node: Node, topic: str, commit: bool) -> None:
    create_topic(node.bootstrap, topic)
    identity = init_producer(cluster, f"{topic}-t", TIMEOUT_MS)
    first = fill(cluster, identity, topic, b"a")
    expected = Outcome.COMMITTED if commit else Outcome.ABORTED
    with Cluster({"bootstrap.servers": node.bootstrap}) as other:
        assert end(other, identity, commit=commit) is expected
    assert end(cluster, identity, commit=commit) is expected
    # Ending it differently returns the actual outcome.
    assert end(cluster, identity, commit=not commit) is expected
    assert describe(cluster, [identity.transactional_id])[identity.transactional_id].outcome(identity) is expected
    assert fate(cluster, identity, TopicPartition(topic, 0), first) is (Fate.SEEN if commit else Fate.HIDDEN)
    with Raw(node.port) as raw:
        assert committed_values(raw, topic) == ([b"a"] if commit else [])


def test_a_newer_producer_fences_and_the_log_still_shows_the_outcome(
    cluster: Cluster, node: Node, topic: str
) -> None:
    create_topic(node.bootstrap, topic)
    kept = init_producer(cluster, f"{topic}-t", TIMEOUT_MS)
    kept_at = fill(cluster, kept, topic, b"kept")
    assert end(cluster, kept, commit=True) is Outcome.COMMITTED
    lost = init_producer(cluster, f"{topic}-t", TIMEOUT_MS)
    lost_at = fill(cluster, lost, topic, b"lost")
    newest = init_producer(cluster, f"{topic}-t", TIMEOUT_MS)
    with pytest.raises(Fenced):
        add_partitions(cluster, lost, [TopicPartition(topic, 0)])
    # The coordinator can no longer tell the two apart; the log can.
    assert end(cluster, kept, commit=True) is Outcome.FENCED
    assert end(cluster, lost, commit=True) is Outcome.FENCED
    assert fate(cluster, kept, TopicPartition(topic, 0), kept_at) is Fate.SEEN
    assert fate(cluster, lost, TopicPartition(topic, 0), lost_at) is Fate.HIDDEN
    assert end(cluster, newest, commit=True) is Outcome.EMPTY
    delete_records(node.bootstrap, topic, 0, lost_at + 1)
    assert fate(cluster, kept, TopicPartition(topic, 0), kept_at) is Fate.GONE


def test_another_producers_batch_proves_nothing(cluster: Cluster, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    identity = init_producer(cluster, f"{topic}-t", TIMEOUT_MS)
    first = fill(cluster, identity, topic, b"a")
    end(cluster, identity, commit=True)
    stranger = identity._replace(producer_id=identity.producer_id + 1)
    assert fate(cluster, stranger, TopicPartition(topic, 0), first) is Fate.GONE


def test_a_timed_out_transaction_is_lost(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node(NODE_SETTINGS)
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        identity = init_producer(cluster, f"{topic}-t", 1_500)
        first = fill(cluster, identity, topic, b"a")
        assert list_open(cluster, topic) == [identity.transactional_id]
        assert eventually(lambda: not list_open(cluster, topic))
        assert end(cluster, identity, commit=True) is Outcome.FENCED
        assert eventually(lambda: fate(cluster, identity, TopicPartition(topic, 0), first) is Fate.HIDDEN)
        with pytest.raises((Fenced, TransactionLost)):
            add_partitions(cluster, identity, [TopicPartition(topic, 0)])


def test_open_transactions_are_found_by_prefix(cluster: Cluster, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    names = [f"{topic}.{name}" for name in ("a", "b", "c")]
    identities = [init_producer(cluster, name, TIMEOUT_MS) for name in names]
    for identity in identities[:2]:
        add_partitions(cluster, identity, [TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert list_open(cluster, f"{topic}.") == names[:2]
    result = describe(cluster, [*names, "nobody"])
    assert {name: result[name].is_open for name in result} == dict(zip(names, (True, True, False), strict=True))
    assert result[names[0]].partitions == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert result[names[0]].outcome(identities[0]) is None
    assert result[names[2]].outcome(identities[2]) is Outcome.EMPTY
    assert end(cluster, identities[0], commit=False) is Outcome.ABORTED
    assert list_open(cluster, f"{topic}.") == names[1:2]


def test_many_transactions_end_together(cluster: Cluster, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    identities = [init_producer(cluster, f"{topic}.{number:03}", TIMEOUT_MS) for number in range(70)]
    for identity in identities:
        add_partitions(cluster, identity, [TopicPartition(topic, 0)])
    fenced = identities[3]
    init_producer(cluster, fenced.transactional_id, TIMEOUT_MS)
    expected = {each: Outcome.FENCED if each is fenced else Outcome.COMMITTED for each in identities}
    assert end_all(cluster, identities, commit=True) == expected
    assert end_all(cluster, identities, commit=True) == expected
    assert list_open(cluster, f"{topic}.") == []
    # All have ended, so the outcome is the actual one.
    assert end_all(cluster, identities[:2], commit=False) == dict.fromkeys(identities[:2], Outcome.COMMITTED)


def test_many_transactions_end_despite_a_broken_connection(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node(NODE_SETTINGS)
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        identities = [init_producer(cluster, f"{topic}.{number}", TIMEOUT_MS) for number in range(5)]
        for identity in identities:
            add_partitions(cluster, identity, [TopicPartition(topic, 0)])
        node.restart(crash=True)
        assert end_all(cluster, identities, commit=False) == dict.fromkeys(identities, Outcome.ABORTED)


def test_a_refusal_of_the_cluster_is_an_error(cluster: Cluster, topic: str) -> None:
    with pytest.raises(ClientError, match=r"INVALID_TRANSACTION_TIMEOUT.*transaction\.max\.timeout\.ms"):
        init_producer(cluster, f"{topic}-t", 1 << 30)
    assert end(cluster, ProducerIdentity(f"{topic}-nobody", 1, 0), commit=True) is Outcome.FENCED


def test_a_crash_of_the_node_leaves_transactions_to_be_ended(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node(NODE_SETTINGS)
    create_topic(node.bootstrap, topic)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        identity = init_producer(cluster, f"{topic}-t", TIMEOUT_MS)
        fill(cluster, identity, topic, b"a", b"b")
        node.restart(crash=True)
        began = time.monotonic()
        assert end(cluster, identity, commit=True) is Outcome.COMMITTED
        assert time.monotonic() - began < TIMEOUT_MS / 2000
        with Raw(node.port) as raw:
            assert eventually(lambda: committed_values(raw, topic) == [b"a", b"b"])
