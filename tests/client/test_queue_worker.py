"""Workers of a queue: records one by one, retries as releases, dead letters before acceptance, orderly stops."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from millpond import (
    ConfigError,
    HandlerFailed,
    Message,
    Producer,
    Queue,
    Reject,
    Retry,
    Send,
    SqliteIds,
    UnknownTopic,
    Worker,
)
from millpond.client.dead_letters import REDRIVEN, REDRIVEN_FOR, read_dead_letter
from millpond.client.queue_jobs import QueueJobs, job_of
from millpond.remote.shares.held_record import HeldRecord
from support.node import Node, eventually, free_port
from support.share_settings import SHORT_LOCK, configure, needs_broker_letters, needs_delay

IDLE_SECONDS = 0.3
QUICK = Retry(3, first_s=0.05)


def make(handler: Any, topic: str, group: str, **options: Any) -> Worker:
    return Worker(handler, topic, group=group, mode="queue", **options)


@pytest.mark.smoke
def test_forty_handlers_share_one_partition(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"%d" % n for n in range(40)])
    together = threading.Barrier(40)

    def handler(message: Message) -> None:
        together.wait(60)

    worker = make(handler, topic, broker.group(), concurrency=40)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert worker.stats.processed == 40


def test_forty_tasks_share_one_partition(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"%d" % n for n in range(40)])
    running, all_run = 0, asyncio.Event()

    async def handler(message: Message) -> None:
        nonlocal running
        running += 1
        if running == 40:
            all_run.set()
        await asyncio.wait_for(all_run.wait(), 60)

    worker = make(handler, topic, broker.group(), concurrency=40)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert worker.stats.processed == 40


def test_many_quick_records_of_several_partitions(broker) -> None:
    topic = broker.topic()
    broker.fill(topic, [b"%d" % n for n in range(1000)])
    seen: Counter[int] = Counter()
    worker = make(lambda message: seen.update([int(message.value)]), topic, broker.group(), concurrency=4)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert seen == dict.fromkeys(range(1000), 1)
    assert worker.stats.processed == 1000


def test_a_failed_record_is_tried_again_and_blocks_nothing(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"bad", b"1", b"2"], keys=1)
    seen: list[bytes | None] = []

    def handler(message: Message) -> None:
        seen.append(message.value)
        if message.value == b"bad" and seen.count(b"bad") < 3:
            raise ValueError("not yet")

    worker = make(handler, topic, broker.group(), retries=QUICK)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert Counter(seen) == {b"bad": 3, b"1": 1, b"2": 1}
    assert (worker.stats.processed, worker.stats.retried, worker.stats.dead) == (3, 2, 0)


@needs_delay
def test_retries_wait_for_their_delay(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"bad"])
    at: list[float] = []

    def handler(message: Message) -> None:
        at.append(time.monotonic())
        if len(at) < 3:
            raise ValueError("not yet")

    retries = Retry(3, first_s=1.0, backoff="fixed", jitter=0)
    make(handler, topic, broker.group(), retries=retries).run(broker.bootstrap, until_idle_s=2.5)
    assert [after - before >= 0.9 for before, after in pairwise(at)] == [True, True]


def test_a_record_that_always_fails_becomes_a_dead_letter(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    letters = f"{topic}.dlq"
    broker.fill(topic, [b"poison", b"good"])

    def handler(message: Message) -> None:
        if message.value == b"poison":
            raise ValueError("no")

    worker = make(handler, topic, group, retries=QUICK, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    (message,) = broker.read(letters)
    letter = read_dead_letter(message)
    assert message.value == b"poison"
    assert (letter.error_type, letter.error_message, letter.attempts, letter.group) == ("ValueError", "no", 3, group)
    assert "in handler" in letter.error_traceback
    assert (letter.origin.topic, letter.origin.offset) == (topic, 0)
    assert (worker.stats.processed, worker.stats.retried, worker.stats.dead) == (1, 2, 1)
    with Queue(topic, group, bootstrap=broker.bootstrap) as queue:
        assert queue.receive(timeout=0.5) == []


def test_what_a_retry_cannot_help_is_given_up_at_once(broker) -> None:
    topic = broker.topic(1)
    letters = f"{topic}.dlq"
    broker.fill(topic, [b"not json", b'"rejected"'])

    def handler(value: str) -> None:
        raise Reject("why")

    worker = Worker(
        handler,
        topic,
        group=broker.group(),
        mode="queue",
        retries=QUICK,
        dead_letters=letters,
        decoder=lambda message: message.json(),
    )
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    found = [read_dead_letter(each) for each in broker.read(letters, 2)]
    assert sorted(each.attempts for each in found) == [1, 1]
    assert worker.stats.retried == 0


def test_without_dead_letters_the_worker_stops_and_the_record_stays(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, [b"poison"])

    def handler(message: Message) -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(HandlerFailed, match="dead_letters="):
            make(handler, topic, group).run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    with Queue(topic, group, bootstrap=broker.bootstrap) as queue:
        (message,) = queue.receive(timeout=30)
        assert message.value == b"poison"
        assert message.deliveries == 1, "a worker that stops does not use up its deliveries"
        message.ack()


@needs_broker_letters
def test_without_dead_letters_the_broker_may_write_them(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    letters = f"{topic}.dlq"
    broker.create(letters, 1)
    configure(broker.bootstrap, group, errors_deadletterqueue_topic_name=letters)
    broker.fill(topic, [b"poison"])

    def handler(message: Message) -> None:
        raise ValueError("no")

    worker = make(handler, topic, group)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    letter = read_dead_letter(broker.read(letters)[0])
    assert (letter.error_type, letter.error_message) == ("ValueError", "no")
    assert worker.stats.dead == 1


def test_what_a_handler_sends_is_sent(broker) -> None:
    topic, target = broker.topic(1), broker.topic(1)
    broker.fill(topic, [b"a", b"b"])
    worker = make(lambda message: Send(target, message.value), topic, broker.group())
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert sorted(each.value or b"" for each in broker.read(target, 2)) == [b"a", b"b"]
    assert worker.stats.processed == 2


def test_a_send_that_is_refused_fails_the_record(broker) -> None:
    topic = broker.topic(1)
    letters = f"{topic}.dlq"
    broker.fill(topic, [b"a"])
    worker = make(lambda _: Send("missing", b"x"), topic, broker.group(), dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert [each.value for each in broker.read(letters)] == [b"a"]
    assert (worker.stats.processed, worker.stats.dead) == (0, 1)


def test_locks_are_renewed_while_a_handler_runs(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    configure(broker.bootstrap, group, share_record_lock_duration_ms="2000")
    broker.fill(topic, [b"long"])
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.offset)
        time.sleep(5)

    worker = make(handler, topic, group, concurrency=2)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert seen == [0]
    assert (worker.stats.processed, worker.stats.expired) == (1, 0)


def test_a_lost_lock_is_counted_and_the_record_runs_again(broker, caplog) -> None:
    topic, group = broker.topic(1), broker.group()
    configure(
        broker.bootstrap,
        group,
        share_record_lock_duration_ms=SHORT_LOCK,
        share_renew_acknowledge_enable="false",
    )
    broker.fill(topic, [b"long"])
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.offset)
        if len(seen) == 1:
            # Without renewals the second runner gets the record while this one sleeps.
            assert eventually(lambda: len(seen) == 2)

    worker = make(handler, topic, group, concurrency=2)
    with caplog.at_level(logging.WARNING, "millpond.client"):
        worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert seen == [0, 0]
    assert (worker.stats.processed, worker.stats.expired) == (1, 1)
    assert any("share.renew.acknowledge.enable" in each.message for each in caplog.records)


def test_an_orderly_stop_finishes_what_runs_and_returns_the_rest_unused(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, [b"%d" % n for n in range(20)])
    seen: list[int] = []

    def handler(message: Message) -> None:
        worker.stop()
        seen.append(message.offset)

    worker = make(handler, topic, group)
    worker.run(broker.bootstrap)
    assert worker.stats.processed == len(seen) == 1
    with Queue(topic, group, bootstrap=broker.bootstrap) as queue:
        rest = queue.receive(max=100, timeout=30)
        assert sorted(each.offset for each in rest) == sorted(set(range(20)) - set(seen))
        assert {each.deliveries for each in rest} == {1}


def test_a_handler_that_does_not_end_is_left_and_its_record_released(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, [b"a"])
    began, gate = threading.Event(), threading.Event()

    def stuck(message: Message) -> None:
        began.set()
        gate.wait(300)

    worker = make(stuck, topic, group, stop_timeout_s=0.2).start(broker.bootstrap)
    assert began.wait(60)
    worker.stop()
    with Queue(topic, group, bootstrap=broker.bootstrap) as queue:
        (message,) = queue.receive(timeout=30)
        assert message.deliveries == 2, "it was started"
        message.ack()
    gate.set()


def test_more_tries_than_deliveries_are_cut_and_said(broker, caplog) -> None:
    topic, group = broker.topic(1), broker.group()
    letters = f"{topic}.dlq"
    configure(broker.bootstrap, group, share_delivery_count_limit="2")
    broker.fill(topic, [b"poison"])

    def handler(message: Message) -> None:
        raise ValueError("no")

    worker = make(handler, topic, group, retries=Retry(9, first_s=0.01), dead_letters=letters)
    with caplog.at_level(logging.WARNING, "millpond.client"):
        worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert any("share.delivery.count.limit" in each.message for each in caplog.records)
    assert read_dead_letter(broker.read(letters)[0]).attempts == 2


def test_a_topic_that_does_not_exist(broker) -> None:
    worker = make(lambda _: None, "never-created", broker.group())
    with pytest.raises(UnknownTopic, match="never-created"):
        worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)


def test_a_record_sent_back_for_another_group_is_skipped(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    seen: list[Message] = []
    with Producer(broker.bootstrap) as producer:
        for meant in ("another", group):
            headers = {"own": "x", REDRIVEN: "2", REDRIVEN_FOR: meant}
            producer.send(topic, meant, headers=headers).result(30)
    worker = make(seen.append, topic, group)
    worker.run(broker.bootstrap, until_idle_s=IDLE_SECONDS)
    assert [(each.text(), each.headers) for each in seen] == [(group, (("own", b"x"),))]
    with Queue(topic, group, bootstrap=broker.bootstrap) as queue:
        assert queue.receive(timeout=0.5) == []


def test_a_worker_waits_for_a_cluster_that_does_not_answer_yet(tmp_path, caplog) -> None:
    node = Node(tmp_path, {"group.initial.rebalance.delay.ms": "0"}).start()
    seen: list[bytes | None] = []
    try:
        with Queue("jobs", bootstrap=node.bootstrap, settings={"allow.auto.create.topics": True}) as queue:
            queue.send(b"a").result(60)
        node.terminate()
        worker = make(lambda message: seen.append(message.value), "jobs", "g")
        with caplog.at_level(logging.WARNING, "millpond.client"):
            worker.start(node.bootstrap)
            assert eventually(lambda: any("cannot start yet" in each.message for each in caplog.records))
            assert worker.is_running()
            node.start()
            assert eventually(lambda: seen == [b"a"])
        worker.stop()
    finally:
        node.kill9()


def test_a_worker_that_waits_for_the_cluster_can_be_stopped() -> None:
    worker = make(lambda _: None, "jobs", "g").start(f"127.0.0.1:{free_port()}")
    worker.stop()
    assert not worker.is_running()


def test_a_worker_survives_the_death_of_its_node(tmp_path) -> None:
    node = Node(tmp_path, {"group.initial.rebalance.delay.ms": "0"}).start()
    seen: Counter[int] = Counter()
    enough = threading.Event()

    def handler(message: Message) -> None:
        time.sleep(0.005)
        seen[int(message.value or b"")] += 1
        if len(seen) >= 20:
            enough.set()

    try:
        with Queue("jobs", bootstrap=node.bootstrap, settings={"allow.auto.create.topics": True}) as queue:
            for n in range(300):
                queue.send(b"%d" % n)
        worker = make(handler, "jobs", "g", concurrency=2).start(node.bootstrap)
        assert enough.wait(60)
        node.restart(crash=True)
        assert eventually(lambda: len(seen) == 300)
        worker.stop()
        with Queue("jobs", "g", bootstrap=node.bootstrap) as queue:
            assert queue.receive(timeout=1) == []
    finally:
        node.kill9()
    assert worker.stats.processed <= sum(seen.values())


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"delivery": "exactly_once"}, "delivery"),
        ({"delivery": "at_most_once"}, "delivery"),
        ({"processed": SqliteIds(":memory:"), "delivery": "at_least_once"}, "processed"),
        ({"commit_every_s": 5.0}, "commit_every_s"),
        ({"protocol": "consumer"}, "protocol"),
        ({"instance": "a"}, "instance"),
        ({"session_timeout_s": 6.0}, "session_timeout_s"),
        ({"transaction_timeout_s": 5.0}, "transaction_timeout_s"),
        ({"from_": 5}, "from_"),
        ({"mode": "stack"}, "mode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], about: str) -> None:
    def handler(message: Message) -> None: ...

    with pytest.raises(ConfigError, match=about):
        Worker(handler, "jobs", group="g", **{"mode": "queue", **options})


def test_patterns_are_refused() -> None:
    with pytest.raises(ConfigError, match="patterns"):
        make(lambda _: None, "^jobs.*", "g")


def jobs_of(count: int) -> list[Any]:
    from uuid import UUID

    from millpond.base.ids import TopicPartition
    from millpond.wire.records import Record

    return [
        job_of(HeldRecord((UUID(int=1), 0), TopicPartition("t", 0), Record(n, 0, None, b""), 1, 9.0, 9.0))
        for n in range(count)
    ]


def test_a_worker_takes_ahead_only_what_its_handlers_finish_soon() -> None:
    jobs = QueueJobs(concurrency=2, in_flight_max=100)
    assert jobs.room() == 2
    first, second = jobs_of(2)
    jobs.add(first)
    jobs.add(second)
    assert jobs.room() == 0
    assert jobs.start() is first
    jobs.settle(first, 10.0)
    assert jobs.room() == 1, "one handler is free, and slow ones take nothing ahead"
    assert jobs.start() is second
    for _ in range(60):
        jobs.settle(second, 0.01)
    jobs.end(first)
    jobs.end(second)
    assert jobs.room() > 20


def test_a_worker_never_holds_more_than_it_may() -> None:
    jobs = QueueJobs(concurrency=10, in_flight_max=3)
    assert jobs.room() == 3
    for each in jobs_of(3):
        jobs.add(each)
        assert jobs.start() is each
        jobs.settle(each, 0.0)
    assert jobs.room() == 0, "their acknowledgements are on their way"
