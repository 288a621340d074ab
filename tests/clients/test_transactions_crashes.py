"""Transactions and idempotent producers through crashes, broken connections and forgotten producer ids."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaException, Producer

from support.node import HOST, eventually, free_port
from support.proxy import Proxy
from support.raw import Raw
from support.raw_transactions import (
    NODE_SETTINGS,
    READ_UNCOMMITTED,
    committed_values,
    end_offset,
    producers_of,
    wait_for_state,
)
from support.transactions import ConfluentWriter

TOPIC = "records"


def test_a_living_producer_commits_through_a_crash(make_node):
    node = make_node(NODE_SETTINGS)
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
    writer = ConfluentWriter(node.bootstrap, TOPIC)
    expected = []
    for turn in range(2):
        writer.begin()
        values = [b"%d-before" % turn, b"%d-after" % turn]
        writer.send(TOPIC, 0, values[0])
        node.restart(crash=True)
        writer.send(TOPIC, 0, values[1])
        writer.commit()
        expected += values
    assert not writer.failed
    with Raw(node.port) as raw:
        wait_for_state(raw, TOPIC, "CompleteCommit")
        assert committed_values(raw, TOPIC) == expected
        assert end_offset(raw, TOPIC, READ_UNCOMMITTED) == len(expected) + 2


IDEMPOTENT = {
    "enable.idempotence": True,
    "linger.ms": 1,
    "batch.num.messages": 20,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "log_level": 0,
}


def test_broken_connections_lead_to_no_doubles(make_node):
    """The connection breaks while acknowledgements are in flight: the producer retries, and the node detects the
    duplicates.
    """
    node, port = make_node(start=False), free_port()
    node.settings["advertised.listener"] = f"{HOST}:{port}"
    node.start()
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
    proxy = Proxy(port, node.port)
    failed = []
    producer = Producer({"bootstrap.servers": f"{HOST}:{port}", **IDEMPOTENT})
    count = 2000
    for number in range(count):
        producer.produce(
            TOPIC, b"%d" % number, partition=0, on_delivery=lambda error, _: error and failed.append(error)
        )
        if number % 200 == 199:
            proxy.mute = True
            producer.flush(0.05)
            proxy.cut()
            proxy.mute = False
    assert producer.flush(30.0) == 0
    proxy.close()
    assert not failed
    assert proxy.cuts > 5
    with Raw(node.port) as raw:
        assert [int(each.value) for each in raw.read_all(TOPIC)] == list(range(count))


def is_committed(writer, values):
    """Whether the transaction with these records was committed; otherwise it is aborted."""
    writer.begin()
    for value in values:
        writer.producer.produce(TOPIC, value, partition=0)
    try:
        writer.producer.commit_transaction(30.0)
    except KafkaException:
        writer.abort()
        return False
    return True


def test_an_abort_while_a_batch_is_to_be_sent_again_costs_the_next_transaction_nothing(make_node):
    """librdkafka then reuses the sequences of that batch, which was written, for the next one."""
    node, port = make_node(NODE_SETTINGS, start=False), free_port()
    node.settings["advertised.listener"] = f"{HOST}:{port}"
    node.start()
    proxy = Proxy(port, node.port)
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
        # Not retried before it is aborted.
        patience = {"linger_ms": 20, "retry_backoff_ms": 1000, "retry_backoff_max_ms": 1000}
        writer = ConfluentWriter(f"{HOST}:{port}", TOPIC, **patience)
        producer = writer.producer
        writer.begin()
        writer.send(TOPIC, 0, b"before")
        proxy.mute = True
        for _ in range(5):
            producer.produce(TOPIC, b"given up", partition=0)
        eventually(lambda: end_offset(raw, TOPIC, READ_UNCOMMITTED) == 6)
        proxy.cut()
        proxy.mute = False
        # The producer then knows that the response is lost.
        eventually(lambda: proxy.connections)
        writer.abort()
        values = [b"%d" % number for number in range(5)]
        # The first try is rejected, and leads to a new epoch.
        if not is_committed(writer, values):
            assert is_committed(writer, values)
        assert committed_values(raw, TOPIC) == values
    proxy.close()


@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
def test_a_producer_outlives_the_memory_of_its_id(make_node, transactional):
    node = make_node({**NODE_SETTINGS, "producer.id.expiration.ms": "200", "log.retention.check.interval.ms": "100"})
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
        if transactional:
            writer = ConfluentWriter(node.bootstrap, TOPIC)
        else:
            producer = Producer({"bootstrap.servers": node.bootstrap, **IDEMPOTENT})
        failed = []
        for turn in range(3):
            if transactional:
                writer.begin()
                writer.send(TOPIC, 0, b"%d" % turn)
                # An open transaction is never forgotten.
                time.sleep(0.5)
                assert len(producers_of(raw, TOPIC)) == 1
                writer.commit()
                wait_for_state(raw, TOPIC, "CompleteCommit")
            else:
                producer.produce(
                    TOPIC, b"%d" % turn, partition=0, on_delivery=lambda error, _: error and failed.append(error)
                )
                assert producer.flush(10.0) == 0
            assert eventually(lambda: not producers_of(raw, TOPIC)), "the id is remembered for ever"
        assert not failed
        assert committed_values(raw, TOPIC) == [b"0", b"1", b"2"]
