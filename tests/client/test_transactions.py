"""Read, process, write in one transaction."""

from __future__ import annotations

import time

import pytest

from millpond import Consumer, Fenced, HandlerFailed, Message, Send, SendFailed, Worker
from millpond.base.ids import TopicPartition
from millpond.testing.cluster import Ponds
from support.node import eventually
from support.seeds import dice

VALUES = [b"%d" % n for n in range(50)]
REFRESH_MS = 1_000


@pytest.mark.smoke
def test_what_is_sent_and_the_position_are_one(cluster) -> None:
    """On the mock too: it has transactions, though it hides nothing that was aborted."""
    topic, out, group = cluster.topic(), cluster.topic(), cluster.group()
    cluster.fill(topic, VALUES, keys=5)
    worker = Worker(
        lambda message: [Send(out, message.value, message.key), Send(out, b"-" + message.value, message.key)],
        topic,
        group=group,
        delivery="exactly_once",
        session_timeout_s=cluster.session_s,
    )
    worker.run(cluster.bootstrap, until_idle_s=0.5)
    assert sorted(message.value for message in cluster.read(out, 100)) == sorted(
        [*VALUES, *(b"-" + value for value in VALUES)]
    )
    if cluster.is_mock:
        return  # it takes the positions of a transaction and forgets them
    with Consumer(group, [topic], bootstrap=cluster.bootstrap) as consumer:
        committed = consumer.committed([TopicPartition(topic, n) for n in range(4)])
        assert sum(at or 0 for at in committed.values()) == 50


@pytest.mark.smoke
def test_dead_letters_are_in_the_transaction_and_the_failed_record_s_sends_are_not(broker) -> None:
    topic, out, letters = broker.topic(1), broker.topic(1), broker.topic(1)
    broker.fill(topic, VALUES)

    def picky(message: Message):  # type: ignore[no-untyped-def]
        yield Send(out, message.value)
        if message.value == b"7":
            raise ValueError("seven")

    worker = Worker(picky, topic, group=broker.group(), delivery="exactly_once", dead_letters=letters, concurrency=4)
    worker.run(broker.bootstrap, until_idle_s=0.4)
    assert [message.value for message in broker.read(letters)] == [b"7"]
    assert {message.value for message in broker.read(out, 49)} == set(VALUES) - {b"7"}
    assert (worker.stats.processed, worker.stats.dead) == (49, 1)


def test_order_of_what_is_sent_follows_the_order_of_what_was_read(broker) -> None:
    topic, out = broker.topic(1), broker.topic(1)
    broker.fill(topic, VALUES)
    worker = Worker(
        lambda message: Send(out, message.value), topic, group=broker.group(), delivery="exactly_once", concurrency=8
    )
    worker.run(broker.bootstrap, until_idle_s=0.4)
    assert [message.value for message in broker.read(out, 50)] == VALUES


def test_a_second_instance_of_the_same_name_fences_the_first(broker) -> None:
    topic, out, group = broker.topic(1), broker.topic(1), broker.group()
    options = {"group": group, "delivery": "exactly_once", "instance": "only"}
    first = Worker(lambda message: Send(out, message.value), topic, **options).start(broker.bootstrap)
    broker.fill(topic, [b"1"])
    assert len(broker.read(out, 1)) == 1
    second = Worker(lambda message: Send(out, message.value), topic, **options).start(broker.bootstrap)
    broker.fill(topic, [b"2"])
    assert [message.value for message in broker.read(out, 2)] == [b"1", b"2"]
    broker.fill(topic, [b"3"])
    assert eventually(lambda: not first.is_running())
    with pytest.raises(Fenced, match="its own name"):
        first.stop()
    second.stop()
    assert [message.value for message in broker.read(out, 3)] == [b"1", b"2", b"3"]


def test_a_record_nobody_can_send_stops_the_worker_before_it(broker) -> None:
    topic, out, group = broker.topic(1), broker.topic(1), broker.group()
    broker.fill(topic, [b"1", b"2"])
    worker = Worker(
        lambda message: Send(out, dice(1).randbytes(3_000_000) if message.value == b"2" else b"x"),
        topic,
        group=group,
        delivery="exactly_once",
        in_flight_max=1,
    )
    with pytest.raises(HandlerFailed, match=r"message\.max\.bytes") as failure:
        worker.run(broker.bootstrap, until_idle_s=5)
    assert isinstance(failure.value.__cause__, SendFailed)
    fixed = Worker(lambda message: Send(out, message.value), topic, group=group, delivery="exactly_once")
    fixed.run(broker.bootstrap, until_idle_s=0.4)
    assert broker.read(out, 2)[-1].value == b"2"


@pytest.mark.slow
def test_a_worker_goes_on_when_the_coordinator_of_its_group_dies_between_two_transactions() -> None:
    """librdkafka 2.10 to 2.16 hangs here for good with its own settings."""
    with Ponds(3) as ponds:
        for name in ("in", "out"):
            ponds.create_topic(name, replicas=3)
        ponds.produce("in", b"first")
        worker = Worker(
            lambda message: Send("out", message.value),
            "in",
            group="copiers",
            delivery="exactly_once",
            settings={"topic.metadata.refresh.interval.ms": REFRESH_MS},
        )
        worker.start(ponds.bootstrap)
        assert [each.value for each in ponds.consume("out", 1, timeout=60)] == [b"first"]
        described = ponds.admin.describe_consumer_groups(["copiers"])["copiers"].result(60)
        coordinator = described.coordinator.id
        ponds[coordinator].kill()
        assert eventually(lambda: coordinator not in ponds.admin.list_topics(timeout=60).brokers)
        # The worker's own producer has to notice as well: that is when librdkafka drops the broker it waits for.
        time.sleep(3 * REFRESH_MS / 1000)
        ponds.produce("in", b"second")
        assert [each.value for each in ponds.consume("out", 2, timeout=120)] == [b"first", b"second"]
        worker.stop()
