"""Queues and their workers with Apache Kafka, where a release cannot be delayed. Skipped without its archives."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from millpond import LockExpired, Message, Queue, QueueMessage, Retry, Worker
from millpond.client.dead_letters import read_dead_letter
from millpond.remote.cluster import Cluster
from millpond.remote.topics import create_topic
from support.kafka_broker import PASSWORD, USER, KafkaBroker
from support.patience import with_time
from support.share_settings import configure

pytestmark = [with_time, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    settings = {
        "group.share.min.record.lock.duration.ms": "1000",
        "share.coordinator.state.topic.num.partitions": "1",
    }
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka-queues"), settings).start()
    yield broker
    broker.kill9()


def create(kafka: KafkaBroker, *names: str) -> None:
    with Cluster({"bootstrap.servers": kafka.bootstrap}) as cluster:
        for each in names:
            create_topic(cluster, each, 1)


def receive(queue: Queue, count: int = 1) -> list[QueueMessage]:
    messages: list[QueueMessage] = []
    deadline = time.monotonic() + 60
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} came"
        messages += queue.receive(max=count - len(messages), timeout=5)
    return messages


def test_every_verdict(kafka: KafkaBroker, caplog: pytest.LogCaptureFixture) -> None:
    create(kafka, "verdicts")
    with (
        caplog.at_level(logging.WARNING, "millpond.client"),
        Queue("verdicts", "verdicts", bootstrap=kafka.bootstrap) as queue,
    ):
        for n in range(4):
            queue.send(str(n)).result(30)
        by_text = {each.text(): each for each in receive(queue, 4)}
        by_text["0"].ack()
        by_text["1"].reject("no")
        by_text["2"].renew()
        by_text["2"].release(delay=3600)
        by_text["3"].release(delay=3600)
        again = receive(queue, 2)
        assert {each.text() for each in again} == {"2", "3"}
        assert {each.deliveries for each in again} == {2}
        for each in again:
            each.ack()
        assert queue.receive(timeout=1) == []
    assert len([each for each in caplog.records if "cannot delay" in each.message]) == 1


def test_an_expired_lock(kafka: KafkaBroker) -> None:
    create(kafka, "locks")
    configure(kafka.bootstrap, "locks", share_record_lock_duration_ms="1000")
    with Queue("locks", "locks", bootstrap=kafka.bootstrap) as queue:
        queue.send(b"a").result(30)
        (message,) = receive(queue)
        (again,) = receive(queue)
        assert again.deliveries == 2
        with pytest.raises(LockExpired):
            message.ack()
        again.ack()


def test_a_worker_with_retries_and_dead_letters(kafka: KafkaBroker) -> None:
    create(kafka, "work")
    configure(kafka.bootstrap, "work", share_record_lock_duration_ms="1000")
    seen: Counter[bytes | None] = Counter()

    def handler(message: Message) -> None:
        seen[message.value] += 1
        if message.value == b"long":
            time.sleep(2.5)
        if message.value == b"poison":
            raise ValueError("no")

    with Queue("work", bootstrap=kafka.bootstrap) as queue:
        for value in (b"poison", b"long", *(b"%d" % n for n in range(50))):
            queue.send(value).result(30)
    worker = Worker(
        handler,
        "work",
        group="work",
        mode="queue",
        concurrency=8,
        retries=Retry(3, first_s=0.1),
        dead_letters="w.dlq",
    )
    worker.run(kafka.bootstrap, until_idle_s=1)
    assert seen == {b"poison": 3, b"long": 1} | {b"%d" % n: 1 for n in range(50)}
    assert (worker.stats.processed, worker.stats.dead, worker.stats.expired) == (51, 1, 0)
    with Queue("w.dlq", "letters", bootstrap=kafka.bootstrap) as queue:
        (message,) = receive(queue)
        assert read_dead_letter(message).attempts == 3


def test_with_tls_and_a_login(kafka: KafkaBroker) -> None:
    create(kafka, "secret")
    own = kafka.login("SECRET")
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": own["ssl.truststore.location"],
    }
    with Queue("secret", "secret", bootstrap=own["bootstrap.servers"], settings=settings) as queue:
        queue.send(b"a").result(30)
        receive(queue)[0].ack()
