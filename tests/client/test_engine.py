"""Running workers: order, retries, dead letters, back-pressure, rebalances."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond import Consumer, HandlerFailed, Message, Producer, Reject, Retry, Send, Worker
from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import read_dead_letter
from millpond.client.runners import Threads
from support.node import PATIENCE_SECONDS, eventually
from support.seeds import dice

VALUES = [b"%d" % n for n in range(60)]
IDLE_S = 0.4


class Order(msgspec.Struct):
    id: int


@pytest.mark.smoke
def test_every_record_is_processed_and_committed(cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    cluster.fill(topic, VALUES, keys=6)
    seen: list[bytes | None] = []
    worker = Worker(
        lambda message: seen.append(message.value), topic, group=group, session_timeout_s=cluster.session_s
    )
    worker.run(cluster.bootstrap, until_idle_s=IDLE_S)
    assert sorted(seen) == sorted(VALUES)
    assert worker.stats.processed == 60
    partitions = [TopicPartition(topic, n) for n in range(4)]
    with Consumer(group, [topic], bootstrap=cluster.bootstrap) as consumer:
        assert sum(at or 0 for at in consumer.committed(partitions).values()) == 60


@pytest.mark.smoke
def test_poison_goes_to_the_dead_letters_and_the_partition_moves_on(cluster) -> None:
    topic, letters = cluster.topic(), cluster.topic()
    with Producer(cluster.bootstrap) as producer:
        for n in range(20):
            producer.send(topic, {"id": n}, "one-key", headers={"trace": str(n)}, partition=2)
    tries: Counter[int] = Counter()
    done: list[int] = []

    def charge(order: Order, message: Message) -> None:
        tries[order.id] += 1
        if order.id % 5 == 3:
            raise KeyError(f"no customer {order.id}")
        done.append(order.id)

    worker = Worker(
        charge,
        topic,
        group="billing",
        retries=Retry(3, first_s=0.02),
        dead_letters=letters,
        concurrency=4,
        session_timeout_s=cluster.session_s,
    )
    worker.run(cluster.bootstrap, until_idle_s=IDLE_S)
    assert done == [n for n in range(20) if n % 5 != 3], "in order, because all have one key"
    assert {n: count for n, count in tries.items() if count > 1} == {3: 3, 8: 3, 13: 3, 18: 3}
    found = cluster.read(letters, 4)
    assert [message.json()["id"] for message in found] == [3, 8, 13, 18], "dead letters of one key keep their order"
    letter = read_dead_letter(found[0])
    assert (letter.origin.topic, letter.origin.partition, letter.origin.offset) == (topic, 2, 3)
    assert (letter.attempts, letter.group, letter.error_type) == (3, "billing", "KeyError")
    assert "no customer 3" in letter.error_message
    assert "in charge" in letter.error_traceback
    assert (found[0].key, found[0].header("trace")) == (b"one-key", b"3")


def test_payloads_that_cannot_be_read_are_dead_at_once(broker) -> None:
    topic, letters = broker.topic(1), broker.topic(1)
    broker.fill(topic, [b'{"id": 1}', b"garbage", b'{"id": "x"}', b'{"id": 2}'])
    seen: list[int] = []

    def charge(order: Order) -> None:
        seen.append(order.id)

    Worker(charge, topic, group=broker.group(), retries=Retry(5), dead_letters=letters).run(
        broker.bootstrap, until_idle_s=IDLE_S
    )
    assert seen == [1, 2]
    found = broker.read(letters, 2)
    assert [message.value for message in found] == [b"garbage", b'{"id": "x"}']
    assert {read_dead_letter(message).attempts for message in found} == {1}
    assert {read_dead_letter(message).error_type for message in found} == {"millpond.client.errors.DecodeFailed"}


@pytest.mark.smoke
def test_without_dead_letters_the_worker_stops_before_the_record_and_loses_nothing(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES[:10])

    def fail(message: Message) -> None:
        if message.value == b"5":
            raise ValueError("five")

    worker = Worker(fail, topic, group=group, retries=Retry(2, first_s=0.01)).start(broker.bootstrap)
    assert eventually(lambda: not worker.is_running())
    with pytest.raises(HandlerFailed, match="after 2 tries"):
        worker.stop()
    seen: list[bytes | None] = []
    Worker(lambda message: seen.append(message.value), topic, group=group).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert seen == VALUES[5:10]


@pytest.mark.smoke
def test_a_retry_holds_back_its_key_alone(broker) -> None:
    topic = broker.topic(1)
    with Producer(broker.bootstrap) as producer:
        for key, value in [("bad", b"bad-1"), ("bad", b"bad-2"), *(("good", b"good") for _ in range(10))]:
            producer.send(topic, value, key, partition=0)
    ran: list[bytes | None] = []

    def handle(message: Message) -> None:
        ran.append(message.value)
        if message.value == b"bad-1" and ran.count(b"bad-1") < 3:
            raise ValueError

    Worker(handle, topic, group=broker.group(), retries=Retry(3, first_s=0.2, jitter=0)).run(
        broker.bootstrap, until_idle_s=IDLE_S
    )
    assert ran == [b"bad-1", *[b"good"] * 10, b"bad-1", b"bad-1", b"bad-2"]


def test_with_order_none_records_of_the_key_overtake(broker) -> None:
    topic = broker.topic(1)
    with Producer(broker.bootstrap) as producer:
        for value in (b"1", b"2", b"3"):
            producer.send(topic, value, "key", partition=0)
    ran: list[bytes | None] = []

    def handle(message: Message) -> None:
        ran.append(message.value)
        if message.value == b"1" and ran.count(b"1") < 2:
            raise ValueError

    Worker(handle, topic, group=broker.group(), retries=Retry(3, first_s=0.2, order="none")).run(
        broker.bootstrap, until_idle_s=IDLE_S
    )
    assert ran == [b"1", b"2", b"3", b"1"]


@pytest.mark.smoke
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_retry_topics_bring_a_record_back_when_it_is_due(broker, delivery: str) -> None:
    topic, letters, group = broker.topic(2), broker.topic(1), broker.group()
    broker.fill(topic, [b"dies", b"heals", b"fine"], keys=3)
    ran: dict[bytes | None, list[float]] = defaultdict(list)

    def handle(message: Message) -> None:
        ran[message.value].append(time.monotonic())
        if message.value == b"dies" or (message.value == b"heals" and len(ran[b"heals"]) < 3):
            raise ValueError(f"try {len(ran[message.value])}")

    retries = Retry(3, first_s=0.4, order="none", topics_from_s=0.1, jitter=0)
    options: dict[str, Any] = {"delivery": delivery, "retries": retries, "dead_letters": letters}
    # Another group on the same topics must not run our retries.
    other: list[bytes | None] = []
    with Worker(
        lambda message: other.append(message.value),
        topic,
        group=broker.group(),
        bootstrap=broker.bootstrap,
        **options,
    ):
        worker = Worker(handle, topic, group=group, **options)
        worker.run(broker.bootstrap, until_idle_s=1.0)
    assert {value: len(times) for value, times in ran.items()} == {b"dies": 3, b"heals": 3, b"fine": 1}
    for first, second, third in (ran[b"dies"], ran[b"heals"]):
        assert 0.39 <= second - first < 2.5
        assert 0.79 <= third - second < 2.9
    assert len(broker.read(f"{topic}.retry.400ms", 2)) == 2
    assert len(broker.read(f"{topic}.retry.800ms", 2)) == 2
    (letter,) = broker.read(letters)
    found = read_dead_letter(letter)
    assert (found.origin.topic, found.attempts, found.error_message) == (topic, 3, "try 3")
    assert not any(name.startswith("retry.") for name, _ in letter.headers)
    assert sorted(other) == [b"dies", b"fine", b"heals"]


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), concurrency=st.integers(2, 8), is_async=st.booleans())
def test_order_per_key_holds_under_concurrency_retries_and_poison(broker, seed, concurrency, is_async) -> None:
    chance = random.Random(seed)
    topic, letters = broker.topic(3), broker.topic(1)
    keys = [f"key-{chance.randrange(6)}" for _ in range(120)]
    with Producer(broker.bootstrap) as producer:
        for number, key in enumerate(keys):
            producer.send(topic, b"%d" % number, key)
    fails = {number: chance.choice([1, 2, 99]) for number in chance.sample(range(120), 12)}
    ended: dict[bytes | None, list[int]] = defaultdict(list)
    running: Counter[bytes | None] = Counter()
    tries: Counter[int] = Counter()
    lock = threading.Lock()

    def begin(message: Message) -> int:
        with lock:
            running[message.key] += 1
            assert running[message.key] == 1, "two records of one key at a time"
            return int(message.value or b"")

    def end(message: Message, number: int) -> None:
        with lock:
            running[message.key] -= 1
            tries[number] += 1
            if tries[number] <= fails.get(number, 0):
                raise ValueError
            ended[message.key].append(number)

    def handle(message: Message) -> None:
        number = begin(message)
        time.sleep(0.001 * (number % 3))
        end(message, number)

    async def handle_async(message: Message) -> None:
        number = begin(message)
        await asyncio.sleep(0.001 * (number % 3))
        end(message, number)

    worker = Worker(
        handle_async if is_async else handle,
        topic,
        group=broker.group(),
        concurrency=concurrency,
        retries=Retry(3, first_s=0.01),
        dead_letters=letters,
        in_flight_max=50,
    )
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    dead = {number for number, count in fails.items() if count > 2}
    for key in set(keys):
        expected = [number for number, each in enumerate(keys) if each == key and number not in dead]
        assert ended[key.encode()] == expected
    assert {int(message.value or b"") for message in broker.read(letters, len(dead))} == dead


def test_slow_handlers_limit_the_records_in_flight(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    gate = threading.Event()
    began: list[bytes | None] = []

    def slow(message: Message) -> None:
        began.append(message.value)
        gate.wait(300)

    worker = Worker(slow, topic, group=group, in_flight_max=5, concurrency=2, session_timeout_s=2.0)
    worker.start(broker.bootstrap)
    try:
        assert eventually(lambda: len(began) == 2)
        time.sleep(3.0)  # longer than a session: it is full, paused, and still a member
        assert len(began) == 2
        assert worker._engine is not None
        assert len(worker._engine._in_flight) == 5
        gate.set()
        assert eventually(lambda: worker.stats.processed == 60)
    finally:
        gate.set()
        worker.stop()
    assert began == VALUES


SOON_TOLD = {"heartbeat.interval.ms": "300"}
"""Members hear of a rebalance soon, though their sessions last: on a busy machine a short one ends by itself."""


@pytest.mark.parametrize(
    ("protocol", "delivery", "settings"),
    [
        ("classic", "exactly_once", SOON_TOLD),
        ("classic", "at_least_once", SOON_TOLD | {"partition.assignment.strategy": "range"}),
        ("consumer", "at_least_once", {}),
        ("classic", "at_most_once", SOON_TOLD),
    ],
)
def test_workers_share_and_hand_over_without_running_anything_twice(
    broker, protocol: str, delivery: str, settings: dict[str, str]
) -> None:
    topic, out, group = broker.topic(4), broker.topic(1), broker.group()
    broker.fill(topic, [b"%d" % n for n in range(500)], keys=40)
    ran: list[tuple[str, bytes | None]] = []

    def named(name: str) -> Worker:
        def handle(message: Message) -> Send:
            ran.append((name, message.value))
            time.sleep(0.01)
            return Send(out, message.value)

        return Worker(
            handle,
            topic,
            group=group,
            protocol=protocol,
            delivery=delivery,
            concurrency=2,
            session_timeout_s=None if protocol == "consumer" else 10.0,
            in_flight_max=100,
            settings=settings,
        )

    first = named("first").start(broker.bootstrap)
    assert eventually(lambda: len(ran) > 20)
    second = named("second").start(broker.bootstrap)
    assert eventually(lambda: any(name == "second" for name, _ in ran) or len(ran) >= 500)
    first.stop()
    assert eventually(lambda: len(ran) >= 500)
    second.stop()
    assert {name for name, _ in ran} == {"first", "second"}
    assert sorted(value or b"" for _, value in ran) == sorted(b"%d" % n for n in range(500))
    assert len(broker.read(out, 500)) == 500


def test_stopping_closes_gaps_so_that_nothing_runs_twice(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    with Producer(broker.bootstrap) as producer:
        for key in ("slow", "slow", *"abcdefghij"):
            producer.send(topic, key, key, partition=0)
    ran: list[str] = []

    def handle(name: str) -> None:
        if name == "slow":
            time.sleep(0.4)
        ran.append(name)

    worker = Worker(handle, topic, group=group, concurrency=2).start(broker.bootstrap)
    assert eventually(lambda: "j" in ran)
    worker.stop()
    assert ran.count("slow") == 2, "the second stands before records that have run"
    Worker(handle, topic, group=group).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert len(ran) == 12


def test_stopping_does_not_wait_for_retries_and_keeps_their_order(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    with Producer(broker.bootstrap) as producer:
        for value in (b"fails", b"behind", b"other"):
            producer.send(topic, value, "other" if value == b"other" else "key", partition=0)
    ran: list[bytes | None] = []

    def handle(message: Message) -> None:
        ran.append(message.value)
        if message.value == b"fails" and ran.count(b"fails") < 2:
            raise ValueError

    worker = Worker(handle, topic, group=group, retries=Retry(3, first_s=1000), stop_timeout_s=1000)
    worker.start(broker.bootstrap)
    assert eventually(lambda: ran == [b"fails", b"other"])
    worker.stop(PATIENCE_SECONDS)
    Worker(handle, topic, group=group).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert [value for value in ran if value != b"other"] == [b"fails", b"fails", b"behind"]


def test_async_handlers_run_side_by_side(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, VALUES[:20])
    together = most = 0

    async def handle(message: Message) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.05)
        together -= 1

    worker = Worker(handle, topic, group=broker.group(), concurrency=10)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert most == 10
    assert worker.stats.processed == 20


def test_a_topic_may_come_later(broker) -> None:
    topic = f"{broker.topic()}-later"
    seen: list[bytes | None] = []
    worker = Worker(
        lambda message: seen.append(message.value),
        topic,
        group=broker.group(),
        settings={"topic.metadata.refresh.interval.ms": 200},
    )
    with worker:
        pass
    worker.bootstrap = broker.bootstrap
    with worker:
        time.sleep(0.3)
        broker.create(topic, 1)
        broker.fill(topic, [b"1"])
        assert eventually(lambda: seen == [b"1"])


def test_a_group_from_latest_does_not_skip_its_retries(broker) -> None:
    """Nothing is committed in a retry topic before its first record has run: a restart began behind it."""
    topic, group = broker.topic(1), broker.group()
    ran: list[bytes | None] = []

    def handle(message: Message) -> None:
        ran.append(message.value)
        if len(ran) == 1:
            raise ValueError("later")

    options: dict[str, Any] = {
        "group": group,
        "from_": "latest",
        "retries": Retry(2, first_s=1.5, order="none", topics_from_s=0.1, jitter=0),
    }
    with Producer(broker.bootstrap) as producer, Worker(handle, topic, bootstrap=broker.bootstrap, **options):
        # What is written before it has joined is not for it.
        assert eventually(lambda: producer.send(topic, b"1").result(60) and ran)
        assert eventually(lambda: broker.read(f"{topic}.retry.1500ms", settle_s=0.0))
    before = len(ran)
    Worker(handle, topic, **options).run(broker.bootstrap, until_idle_s=2.0)
    assert len(ran) > before, "the record that waited for its second try is lost"


def test_a_worker_that_cannot_start_a_thread_fails(broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic(1)
    start_one = Threads.start_one

    def start_none_from_a_handler(self: Threads) -> None:
        if self.is_inside():
            raise RuntimeError("can't start new thread")
        start_one(self)

    monkeypatch.setattr(Threads, "start_one", start_none_from_a_handler)
    out = broker.topic(1)

    def slow(message: Message) -> Send:
        time.sleep(0.05)
        return Send(out, message.value)

    # While the first record's Send is on its way, the next record is ready and needs another runner.
    broker.fill(topic, VALUES, keys=1)
    worker = Worker(slow, topic, group=broker.group(), concurrency=4)
    with pytest.raises(RuntimeError, match="can't start"):
        worker.run(broker.bootstrap, until_idle_s=5)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_the_largest_record_fits_into_the_dead_letter_topic(broker, delivery: str) -> None:
    """Its letter is larger than the record, and used to end the worker at every start."""
    topic = f"{broker.topic(1)}.large"
    limit = 3_000_000
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, config={"max.message.bytes": str(limit)})])[topic].result(60)
    values = [dice(1).randbytes(size) for size in (999_900, limit - 200)]
    with Producer(broker.bootstrap, settings={"message.max.bytes": 10_000_000}) as producer:
        for value in values:
            producer.send(topic, value).result(60)

    def refuse(message: Message) -> None:
        raise Reject("é" * 10_000)

    worker = Worker(refuse, topic, group=broker.group(), delivery=delivery, dead_letters=f"{topic}.dlq")  # type: ignore[arg-type]
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert [message.value for message in broker.read(f"{topic}.dlq", 2)] == values
