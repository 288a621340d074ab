"""A compacted topic that is written in transactions: after compaction it is still the committed table."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from support import seeds
from support.node import eventually
from support.raw import Raw
from support.raw_transactions import NODE_SETTINGS, committed_records

TOPIC = "table"
KEYS = 40
TRANSACTIONS = 60
SETTINGS = {**NODE_SETTINGS, "log.cleaner.backoff.ms": "100"}


def write(node, model, dice, name, transactions=TRANSACTIONS):
    """Transactions of puts and deletes, a third of them aborted; only committed ones change the model."""
    producer = Producer(
        {"bootstrap.servers": node.bootstrap, "transactional.id": name, "retry.backoff.ms": 10, "log_level": 0}
    )
    producer.init_transactions(20.0)
    for turn in range(transactions):
        changed = {}
        producer.begin_transaction()
        for _ in range(dice.randrange(1, 40)):
            key = b"key-%d" % dice.randrange(KEYS)
            value = None if dice.random() < 0.2 else b"%s-%d-" % (name.encode(), turn) + dice.randbytes(30)
            producer.produce(TOPIC, value, key, 0)
            changed[key] = value
        producer.flush(20.0)
        if dice.random() < 0.33:
            producer.abort_transaction(20.0)
        else:
            producer.commit_transaction(20.0)
            model.update(changed)


def alive(pairs):
    """The table that results from a sequence of changes."""
    return {key: value for key, value in dict(pairs).items() if value is not None}


def read_by_hand(node):
    with Raw(node.port) as raw:
        return [(each.key, each.value) for each in committed_records(raw, TOPIC)]


def read_with_confluent(node):
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    result = []
    while (message := consumer.poll(20.0)) is not None:
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        result.append((message.key(), message.value()))
    consumer.close()
    return result


def create(node, **settings):
    with Raw(node.port) as raw:
        raw.create_topic(
            TOPIC, cleanup_policy="compact", segment_bytes="16384", min_cleanable_dirty_ratio="0.01", **settings
        )


@pytest.mark.slow
@pytest.mark.parametrize("delete_retention_ms", ["0", "86400000"], ids=["markers go", "markers stay"])
def test_the_table_after_compaction_is_the_one_that_was_committed(make_node, delete_retention_ms):
    node = make_node(SETTINGS)
    create(node, delete_retention_ms=delete_retention_ms)
    dice, model = seeds.dice(5), {}
    for name in ("first", "second"):
        # The cleaner is running during the second round of writes.
        write(node, model, dice, name)
        assert alive(read_by_hand(node)) == alive(model)
    written = len(read_by_hand(node))
    # Only the latest record of each key, and the active segment, are left.
    assert eventually(lambda: len(read_by_hand(node)) < 700), f"{written} records are not compacted"
    for read in (read_by_hand, read_with_confluent):
        assert alive(read(node)) == alive(model)
    node.restart(crash=True)
    for read in (read_by_hand, read_with_confluent):
        assert alive(read(node)) == alive(model)
    write(node, model, dice, "third", 10)
    assert alive(read_by_hand(node)) == alive(model)
