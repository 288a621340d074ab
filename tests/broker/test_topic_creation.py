"""Partitions that are created while no broker is unfenced, as in a cluster that has just started."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.administration.topic_creation import UNFENCED_WAIT_MS_MAX
from millpond.metadata.decision import Decision
from millpond.metadata.records import BrokerRegistrationChangeRecord
from millpond.wire import messages as m

FENCED, UNFENCED = 1, -1


def change(server: Any, fenced: int) -> None:
    broker = server.broker
    epoch = broker.image.brokers[broker.node_id].epoch
    server.submit(lambda _: Decision((BrokerRegistrationChangeRecord(broker.node_id, epoch, fenced=fenced),), ()))


def create(timeout_ms: int = 60_000) -> m.CreateTopicsRequest:
    topic = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=1, replication_factor=1)
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


def grow() -> m.CreatePartitionsRequest:
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name="pond", count=2, assignments=None)
    return m.CreatePartitionsRequest(topics=[topic], timeout_ms=60_000)


def test_a_topic_waits_until_brokers_are_unfenced(server: Any) -> None:
    change(server, FENCED)
    caller = server.connect()
    caller.send(create(), 7)
    server.run(UNFENCED_WAIT_MS_MAX - 1000)
    assert caller.replies() == []
    change(server, UNFENCED)
    server.run(500)
    (reply,) = caller.replies()
    assert reply.topics[0].error_code == ErrorCode.NONE


def test_more_partitions_wait_until_brokers_are_unfenced(server: Any) -> None:
    server.create("pond")
    change(server, FENCED)
    caller = server.connect()
    caller.send(grow(), 3)
    server.run(1000)
    assert caller.replies() == []
    change(server, UNFENCED)
    server.run(500)
    (reply,) = caller.replies()
    assert reply.results[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("timeout_ms", [0, 60_000])
def test_the_wait_for_unfenced_brokers_is_bounded(server: Any, timeout_ms: int) -> None:
    change(server, FENCED)
    reply = server.connect().ask(create(timeout_ms), 7, within_ms=UNFENCED_WAIT_MS_MAX + 1000)
    assert reply.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
