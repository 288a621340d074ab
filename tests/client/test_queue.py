"""Queues against a node: who receives a record, for how long, and what an acknowledgement does."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from millpond import (
    AsyncQueue,
    ClientError,
    Closed,
    ConfigError,
    LockExpired,
    Message,
    Queue,
    QueueMessage,
    SendFailed,
    UnknownTopic,
)
from millpond.testing import Pond
from support.node import Node
from support.share_settings import SHORT_LOCK, configure, needs_delay

PATIENCE_SECONDS = 60.0


@pytest.fixture
def open_queue(broker) -> Iterator[Callable[..., Queue]]:
    opened: list[Queue] = []

    def make(topic: str, group: str | None = None, **options: object) -> Queue:
        opened.append(Queue(topic, group, bootstrap=broker.bootstrap, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def receive(queue: Queue, count: int = 1, *, at_once: int = 10) -> list[QueueMessage]:
    """This many messages, however many calls they take."""
    messages: list[QueueMessage] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} came"
        messages += queue.receive(max=min(at_once, count - len(messages)), timeout=5)
    return messages


@pytest.mark.smoke
def test_a_job_is_delivered_once_and_gone_when_acknowledged(broker, open_queue) -> None:
    topic, group = broker.topic(1), broker.group()
    queue = open_queue(topic, group)
    queue.send({"n": 1}, key="a", headers={"trace": "x"}, priority=7).result(30)
    (message,) = receive(queue)
    assert (message.json(), message.key, message.header("trace"), message.deliveries) == ({"n": 1}, b"a", b"x", 1)
    assert message.header("queue.priority") == b"7"
    message.ack()
    assert queue.receive(timeout=0.3) == []
    assert open_queue(topic, group).receive(timeout=0.5) == []


def test_jobs_sent_before_the_first_receiver_are_not_lost(broker, open_queue) -> None:
    topic = broker.topic()
    broker.fill(topic, [b"%d" % n for n in range(20)])
    messages = receive(open_queue(topic, broker.group()), 20)
    assert sorted(int(each.value or b"") for each in messages) == list(range(20))


def test_a_group_that_begins_at_the_end(broker, open_queue) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"old"])
    queue = open_queue(topic, broker.group(), from_="latest")
    assert queue.receive(timeout=1.0) == []
    queue.send(b"new").result(30)
    assert [each.value for each in receive(queue)] == [b"new"]


def test_receivers_share_one_partition(broker, open_queue) -> None:
    topic, group = broker.topic(1), broker.group()
    first, second = open_queue(topic, group), open_queue(topic, group)
    broker.fill(topic, [b"%d" % n for n in range(30)])
    mine, yours = receive(first, 10), receive(second, 10)
    assert len({each.offset for each in (*mine, *yours)}) == 20
    for each in (*mine, *yours):
        each.ack(wait=False)
    rest = receive(first, 10)
    assert {each.deliveries for each in rest} == {1}
    assert len({each.offset for each in (*mine, *yours, *rest)}) == 30


def test_a_released_job_is_delivered_again_and_a_rejected_one_is_not(broker, open_queue) -> None:
    queue = open_queue(broker.topic(1), broker.group())
    queue.send(b"a").result(30)
    (message,) = receive(queue)
    message.release()
    (again,) = receive(queue)
    assert (again.value, again.deliveries) == (b"a", 2)
    again.reject("cannot be done")
    assert queue.receive(timeout=0.5) == []


def test_an_expired_lock_is_an_error_and_the_next_receiver_s_acknowledgement_holds(broker, open_queue) -> None:
    topic, group = broker.topic(1), broker.group()
    configure(broker.bootstrap, group, share_record_lock_duration_ms=SHORT_LOCK)
    slow, quick = open_queue(topic, group), open_queue(topic, group)
    slow.send(b"a").result(30)
    (message,) = receive(slow)
    (again,) = receive(quick)
    assert again.deliveries == 2
    with pytest.raises(LockExpired, match=r"share\.record\.lock\.duration\.ms"):
        message.ack()
    with pytest.raises(LockExpired):
        message.renew()
    again.ack()


def test_a_renewed_lock_is_kept(broker, open_queue) -> None:
    topic, group = broker.topic(1), broker.group()
    configure(broker.bootstrap, group, share_record_lock_duration_ms="3000")
    holder, other = open_queue(topic, group), open_queue(topic, group)
    holder.send(b"a").result(30)
    (message,) = receive(holder)
    ended = threading.Event()
    seen: list[QueueMessage] = []

    def watch() -> None:
        while not ended.is_set():
            seen.extend(other.receive(timeout=0.5))

    watcher = threading.Thread(target=watch)
    watcher.start()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        message.renew()
        time.sleep(0.3)
    message.ack()
    ended.set()
    watcher.join()
    assert seen == []


def test_one_late_acknowledgement_does_not_fail_the_others(broker, open_queue) -> None:
    topic, group = broker.topic(1), broker.group()
    configure(broker.bootstrap, group, share_record_lock_duration_ms="4000")
    queue, thief = open_queue(topic, group), open_queue(topic, group)
    broker.fill(topic, [b"late"])
    (late,) = receive(queue)
    (stolen,) = receive(thief)
    broker.fill(topic, [b"%d" % n for n in range(5)])
    fresh = receive(queue, 5)
    for each in fresh:
        each.ack(wait=False)
    with pytest.raises(LockExpired):
        late.ack()
    assert open_queue(topic, group).receive(timeout=0.5) == []
    stolen.ack()


def test_a_message_is_acknowledged_once(broker, open_queue) -> None:
    queue = open_queue(broker.topic(1), broker.group())
    queue.send(b"a").result(30)
    (message,) = receive(queue)
    message.ack()
    with pytest.raises(ClientError, match="acknowledged before"):
        message.release()
    with pytest.raises(ClientError, match="not received from a queue"):
        QueueMessage("jobs", 0, 0).ack()


def test_closing_releases_what_was_not_acknowledged_and_does_not_count_it(broker, open_queue) -> None:
    topic, group = broker.topic(1), broker.group()
    with Queue(topic, group, bootstrap=broker.bootstrap) as queue:
        queue.send(b"a")
        (message,) = receive(queue)
    with pytest.raises(LockExpired):
        message.ack()
    with pytest.raises(Closed):
        queue.receive()
    (again,) = receive(open_queue(topic, group))
    assert again.deliveries == 1


def test_arguments_that_cannot_be_meant(broker, open_queue) -> None:
    with pytest.raises(ConfigError, match="only sends"):
        open_queue(broker.topic(1)).receive()
    with pytest.raises(ConfigError, match="did you mean"):
        Queue("jobs", gruop="g")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="earliest"):
        Queue("jobs", "g", from_="middle")  # type: ignore[arg-type]
    queue = open_queue(broker.topic(1), broker.group())
    with pytest.raises(ConfigError, match="max"):
        queue.receive(max=0)
    with pytest.raises(ConfigError, match="delay and at"):
        queue.send(b"a", delay=1, at=1)


def test_a_topic_that_does_not_exist(broker, open_queue) -> None:
    queue = open_queue("no-such-topic", broker.group())
    with pytest.raises(UnknownTopic, match="no-such-topic"):
        queue.receive(timeout=3)
    with pytest.raises(SendFailed):
        queue.send(b"a").result(60)


def test_a_consumer_group_has_the_name(broker, open_queue) -> None:
    topic, group = broker.topic(1), broker.group()
    from millpond import Consumer

    with Consumer(group, [topic], bootstrap=broker.bootstrap) as consumer:
        consumer.poll(1, 5)
        while not consumer.has_joined:
            consumer.poll(1, 0.1)
        with pytest.raises(ClientError, match="consumer group"):
            open_queue(topic, group).receive(timeout=10)


@needs_delay
def test_a_released_job_waits_for_its_delay(broker, open_queue) -> None:
    queue = open_queue(broker.topic(1), broker.group())
    queue.send(b"a").result(30)
    (message,) = receive(queue)
    before = time.monotonic()
    message.release(delay=timedelta(seconds=1))
    (again,) = receive(queue)
    assert time.monotonic() - before >= 0.99
    assert again.deliveries == 2


@needs_delay
def test_a_job_for_later_comes_later(broker, open_queue) -> None:
    queue = open_queue(broker.topic(1), broker.group())
    at_ms = int(time.time() * 1000) + 1500
    queue.send(b"later", at=at_ms).result(30)
    queue.send(b"now").result(30)
    first, second = receive(queue, 2, at_once=1)
    assert (first.value, second.value) == (b"now", b"later")
    assert time.time() * 1000 >= at_ms


@pytest.mark.skipif(not needs_delay.args[0], reason="this broker delays")
def test_a_cluster_that_cannot_delay_is_named_once(broker, open_queue, caplog) -> None:
    queue = open_queue(broker.topic(1), broker.group())
    with caplog.at_level(logging.WARNING, "millpond.client"):
        for _ in range(2):
            queue.send(b"a").result(30)
            receive(queue)[0].release(delay=3600)
        assert len(receive(queue, 2)) == 2
    assert [each.message for each in caplog.records if "cannot delay" in each.message] != []
    assert len([each for each in caplog.records if "cannot delay" in each.message]) == 1


def test_with_asyncio(broker) -> None:
    topic, group = broker.topic(1), broker.group()

    async def main() -> None:
        async with AsyncQueue(topic, group, bootstrap=broker.bootstrap) as queue:
            assert (await queue.send(b"a")).offset == 0
            (message,) = await queue.receive(timeout=30)
            await message.renew()
            await message.release()
            waiting = asyncio.create_task(queue.receive(timeout=30))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            (again,) = await queue.receive(timeout=30)
            assert (again.value, again.deliveries) == (b"a", 2)
            await again.ack()
            with pytest.raises(ClientError):
                await again.reject()
            await queue.send(b"b")
            (second,) = await queue.receive(timeout=30)
            acknowledging = asyncio.create_task(second.ack())
            await asyncio.sleep(0)
            acknowledging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acknowledging
            first, other = await asyncio.gather(queue.receive(timeout=1.2), queue.receive(timeout=1.2))
            assert first == other == [], "a cancelled acknowledgement is sent all the same"

    asyncio.run(main())


def test_a_node_killed_in_the_middle(tmp_path) -> None:
    node = Node(tmp_path, {"group.initial.rebalance.delay.ms": "0"}).start()
    try:
        with Queue("jobs", "g", bootstrap=node.bootstrap, settings={"allow.auto.create.topics": True}) as queue:
            queue.send(b"a").result(60)
            queue.send(b"b").result(60)
            first = receive(queue)[0]
            first.ack()
            second = receive(queue)[0]
            assert {first.value, second.value} == {b"a", b"b"}
            node.restart(crash=True)
            with pytest.raises(LockExpired):
                second.ack()
            again = receive(queue)[0]
            assert again.value == second.value, "what was accepted before the crash does not come again"
            again.ack()
    finally:
        node.kill9()


@pytest.mark.millpond(secure=True)
def test_with_tls_and_a_login(millpond: Pond) -> None:
    topic = millpond.create_topic("jobs")
    with Queue(topic, "g", bootstrap=millpond.bootstrap, settings=millpond.login_settings()) as queue:
        queue.send(b"a").result(30)
        (message,) = receive(queue)
        message.ack()


@pytest.mark.millpond(secure="certificates")
def test_a_user_who_may_only_read_receives_with_a_warning(millpond: Pond, caplog) -> None:
    topic = millpond.create_topic("jobs")
    rights = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in (
            (ResourceType.TOPIC, topic, AclOperation.ALL),
            (ResourceType.GROUP, "g", AclOperation.READ),
        )
    ]
    for future in millpond.admin.create_acls(rights).values():
        future.result(30)
    settings = millpond.login_settings("alice")
    with (
        caplog.at_level(logging.WARNING, "millpond.client"),
        Queue(topic, "g", bootstrap=millpond.bootstrap, settings=settings) as queue,
    ):
        # The group begins at the end: this user cannot change that.
        assert queue.receive(timeout=1) == []
        queue.send(b"a").result(30)
        (message,) = receive(queue)
        message.ack()
    assert any("settings of the group g are unknown" in each.message for each in caplog.records)
    with (
        Queue(topic, "other", bootstrap=millpond.bootstrap, settings=settings) as queue,
        pytest.raises(ClientError, match="GROUP_AUTHORIZATION_FAILED"),
    ):
        queue.receive(timeout=30)


@pytest.mark.millpond(secure=True, settings={"connections.max.reauth.ms": "2000"})
def test_a_login_is_renewed_without_losing_the_lock(millpond: Pond) -> None:
    topic = millpond.create_topic("jobs")
    with Queue(topic, "g", bootstrap=millpond.bootstrap, settings=millpond.login_settings()) as queue:
        queue.send(b"a").result(30)
        (message,) = receive(queue)
        for _ in range(3):
            time.sleep(1.1)
            message.renew()
        message.ack()


def test_a_message_is_a_message(broker, open_queue) -> None:
    queue = open_queue(broker.topic(1), broker.group())
    queue.send("text").result(30)
    (message,) = receive(queue)
    assert isinstance(message, Message)
    assert message.text() == "text"
    assert message.timestamp_ms > 0
