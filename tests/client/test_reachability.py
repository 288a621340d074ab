"""An unreachable cluster: one warning when it is missed, one when it is back, and errors that name it."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from millpond import Producer, SendFailed, Timeout, UnknownTopic, Worker
from millpond.client import idle_timeout
from millpond.client.reachability import Reachability
from support.node import eventually, free_port

NOBODY = "127.0.0.1:1"


def handler(message: object) -> None: ...


def said(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if what in each.getMessage()]


@pytest.fixture
def words(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "millpond.client")
    return caplog


def test_a_producer_logs_once_that_the_cluster_is_down_and_once_that_it_is_back(words) -> None:
    port = free_port()
    producer = Producer(f"127.0.0.1:{port}", delivery_timeout_s=30)
    sent = producer.send("orders", b"1")
    assert eventually(lambda: said(words, f"cannot reach 127.0.0.1:{port} (Connection refused)"))
    with pytest.raises(Timeout, match=rf"orders: .* after 0.1 s, because 127.0.0.1:{port} cannot be reached"):
        sent.result(0.1)
    with pytest.raises(Timeout, match="cannot be reached"):
        sent.exception(0.1)
    with socket.create_server(("127.0.0.1", port)):
        assert eventually(lambda: said(words, "is reachable again"))
    assert len(said(words, "cannot reach")) == 1
    with pytest.raises(Timeout):
        producer.close(0)
    with pytest.raises(SendFailed):
        sent.result(0)


def test_failed_records_without_a_waiter_are_counted_in_the_log(words) -> None:
    producer = Producer(NOBODY, delivery_timeout_s=0.3)
    for _ in range(3):
        producer.send("orders", b"1")
    assert eventually(lambda: said(words, "3 records were not sent and nothing waits"))
    producer.close(0)


@pytest.mark.parametrize("options", [{}, {"dead_letters": "orders.dlq"}])
def test_a_run_until_idle_fails_without_a_cluster(options) -> None:
    began = time.monotonic()
    with pytest.raises(Timeout, match=f"cannot reach {NOBODY}"):
        Worker(handler, "orders", group="g", **options).run(NOBODY, until_idle_s=1)
    assert time.monotonic() - began < 15


def test_a_connection_that_broke_for_a_moment_is_not_a_missing_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reachability = Reachability({"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"})
        reachability.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        assert not reachability.is_down_for(0)
    reachability.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert reachability.is_down_for(0)


def test_a_run_without_idle_time_ends_when_everything_is_read(broker) -> None:
    topic = broker.topic(2)
    broker.fill(topic, [b"1"] * 50)
    worker = Worker(handler, topic, group=broker.group())
    worker.run(broker.bootstrap, until_idle_s=0)
    assert worker.stats.processed == 50


def test_a_run_until_idle_fails_without_its_topic(broker) -> None:
    there = broker.topic(1)
    for topics in ("nothere", [there, "nothere"]):
        with pytest.raises(UnknownTopic, match="there is no topic nothere"):
            Worker(handler, topics, group=broker.group()).run(broker.bootstrap, until_idle_s=0.5)


def test_a_run_until_idle_ends_without_partitions(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    with Worker(handler, topic, group=group, bootstrap=broker.bootstrap) as first:
        broker.fill(topic, [b"1"])
        assert eventually(lambda: first.stats.processed == 1)
        second = Worker(handler, topic, group=group)
        second.run(broker.bootstrap, until_idle_s=0.5)
        broker.fill(topic, [b"2"])
        assert eventually(lambda: first.stats.processed + second.stats.processed == 2)


def test_a_worker_logs_that_its_group_waits_for_a_killed_member(
    broker, child, words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_timeout, "WAIT_SECONDS", 0.5)
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, [b"1"])
    arguments = {
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "group": group,
        "delivery": "at_least_once",
        "session_s": 3,
    }
    child(**arguments, effects=tmp_path / "effects", mark=tmp_path / "mark", kill="before_effect", at=1).wait()
    seen: list[object] = []
    Worker(seen.append, topic, group=group).run(broker.bootstrap, until_idle_s=0.3)
    assert len(seen) == 1
    assert said(words, f"waiting for the group {group}")
    assert said(words, "joined the group")
