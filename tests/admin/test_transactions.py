"""Transactions as a program sees and ends them. One that hangs is in tests/cli/test_txn.py: it needs a torn log."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from millpond.admin.errors import Refused
from millpond.admin.transactions import (
    abort_hanging,
    abort_transaction,
    describe_transaction,
    hanging_producers,
    held_back,
    list_transactions,
    open_producers,
    owners,
)
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Pond


def test_an_open_one_is_found_holds_back_and_is_aborted(cluster: Cluster, pond: Pond, topic: str) -> None:
    name, zero = f"{topic}-t", TopicPartition(topic, 0)
    producer = Producer(pond.client_settings(transactional_id=name, transaction_timeout_ms=60_000))
    producer.init_transactions(10)
    with pytest.raises(Refused, match=f"{name} has no open transaction: its last state is empty"):
        abort_transaction(cluster, name)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(60)
    pond.produce(topic, "behind", partition=0)

    transaction = describe_transaction(cluster, name)
    assert (transaction.state, transaction.timeout_ms, transaction.partitions) == ("ongoing", 60_000, (zero,))
    assert transaction in list_transactions(cluster)
    assert list_transactions(cluster, [transaction.producer_id]) == [transaction]
    (opened,) = open_producers(cluster, [zero, TopicPartition(topic, 1)])
    assert (opened.partition, opened.producer_id, opened.first_offset) == (zero, transaction.producer_id, 0)
    assert owners(cluster, [opened]) == {opened: transaction}
    assert held_back(cluster, [opened]) == {zero: 2}
    assert hanging_producers(cluster, [topic]) == []
    with pytest.raises(
        Refused, match=f"is not hanging but ongoing: abort all of it with `millpond txn abort --id {name}`"
    ):
        abort_hanging(cluster, zero, opened.producer_id)

    assert abort_transaction(cluster, name) == transaction
    assert open_producers(cluster, [zero]) == []
    assert describe_transaction(cluster, name).started_ms is None
    with pytest.raises(Refused, match=f"has no open transaction in {topic}-0; there is none at all"):
        abort_hanging(cluster, zero, opened.producer_id)


def test_what_is_not_there_is_refused_with_what_is(cluster: Cluster, topic: str) -> None:
    with pytest.raises(Refused, match="There is no transactional id nobody-at-all"):
        describe_transaction(cluster, "nobody-at-all")
    with pytest.raises(Refused, match=f"{topic} has no partition 9: it has 0 to 1"):
        abort_hanging(cluster, TopicPartition(topic, 9), 1)
    with pytest.raises(Refused, match="There is no topic zzzz"):
        hanging_producers(cluster, ["zzzz"])
