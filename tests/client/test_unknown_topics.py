"""Records for topics that do not exist: nothing is created by a misspelled name, and the error comes soon."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from client.conftest import Cluster
from millpond import AsyncProducer, HandlerFailed, Producer, Send, SendFailed, SqliteIds, UnknownTopic, Worker
from millpond.client.dead_letters import read_dead_letter
from support.node import Node, eventually

SOON_S = 15.0
"""It takes 3 s; less than delivery_timeout_s on a busy machine."""


def topics(cluster: Cluster) -> set[str]:
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=10).topics)


def test_a_record_for_an_unknown_topic_fails_soon_and_creates_nothing(broker: Cluster) -> None:
    name = f"missing-{broker.group()}"
    with Producer(broker.bootstrap) as producer:
        began = time.monotonic()
        with pytest.raises(UnknownTopic, match=f"millpond topic create {name}") as refused:
            producer.send(name, b"x").result(SOON_S)
        assert time.monotonic() - began < SOON_S
        assert isinstance(refused.value, SendFailed)
        with pytest.raises(UnknownTopic, match=name):
            producer.send(name, b"x")
        assert name not in topics(broker)
        broker.create(name, 1)

        def is_sent() -> bool:
            try:
                return producer.send(name, b"y").result(20).partition == 0
            except UnknownTopic:
                return False

        assert eventually(is_sent)


@pytest.mark.parametrize("settings", [{}, {"allow.auto.create.topics": True}])
def test_a_producer_that_may_create_topics_does(broker: Cluster, settings: dict[str, Any]) -> None:
    name = f"created-{broker.group()}"
    with Producer(broker.bootstrap, create_topics=not settings, settings=settings) as producer:
        producer.send(name, b"x").result(30)
    assert name in topics(broker)


def test_an_async_send_fails_alike(broker: Cluster) -> None:
    name = f"missing-{broker.group()}"

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap) as producer:
            with pytest.raises(UnknownTopic):
                await asyncio.wait_for(producer.send(name, b"x"), SOON_S)

    asyncio.run(main())
    assert name not in topics(broker)


@pytest.mark.parametrize("partitioner", ["murmur2", "round_robin"])
def test_a_topic_that_is_created_a_moment_later_is_waited_for(broker: Cluster, partitioner: Any) -> None:
    """As when the node that is asked has not heard yet of a topic created on another one."""
    name = f"late-{broker.group()}"
    creation = threading.Timer(0.5, broker.create, (name, 1))
    creation.start()
    with Producer(broker.bootstrap, partitioner=partitioner) as producer:
        assert producer.send(name, b"x").result(30).partition == 0
    creation.join()


def test_records_wait_for_a_cluster_that_is_away_longer_than_an_unknown_topic(tmp_path: Path) -> None:
    node = Node(tmp_path).start()
    try:
        Cluster("millpond", node.bootstrap).create("orders", 1)
        node.kill9()
        with Producer(node.bootstrap) as producer:
            began = time.monotonic()
            sent = producer.send("orders", b"x")
            assert time.monotonic() - began < 2.0, "send does not wait for the cluster"
            time.sleep(4.0)
            node.start()
            assert sent.result(30).partition == 0
    finally:
        node.kill9()


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_handlers_send_to_an_unknown_topic_is_a_failure_of_its_record(broker: Cluster, delivery: Any) -> None:
    source, letters, name = broker.topic(1), broker.topic(1), f"missing-{broker.group()}"
    broker.fill(source, [b"a"])
    worker = Worker(lambda _: Send(name, b"x"), source, group=broker.group(), delivery=delivery, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=0.4)
    (letter,) = broker.read(letters)
    assert name in read_dead_letter(letter).error_message
    assert name not in topics(broker)


def test_a_send_to_an_unknown_topic_with_a_store_ends_the_worker(broker: Cluster, tmp_path: Path) -> None:
    source, name = broker.topic(1), f"missing-{broker.group()}"
    broker.fill(source, [b"a"])
    store = SqliteIds(tmp_path / "ids.db")
    worker = Worker(
        lambda _: Send(name, b"x"), source, group=broker.group(), delivery="exactly_once", processed=store
    )
    with pytest.raises(HandlerFailed):
        worker.run(broker.bootstrap, until_idle_s=0.4)
    store.close()
    assert name not in topics(broker)


def test_the_dead_letter_topic_is_created_when_the_cluster_was_away_at_the_start(
    broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millpond.client import engine

    source, letters = broker.topic(2), f"letters-{broker.group()}"
    broker.fill(source, [b"a"])
    create, calls = engine.ensure_topics, []

    def first_unanswered(*given: Any) -> bool:
        calls.append(given)
        return len(calls) > 1 and create(*given)

    monkeypatch.setattr(engine, "ensure_topics", first_unanswered)

    def fail(_: object) -> None:
        raise ValueError("no")

    Worker(fail, source, group=broker.group(), dead_letters=letters).run(broker.bootstrap, until_idle_s=0.4)
    assert len(broker.read(letters)) == 1
