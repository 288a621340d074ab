"""A Send that no cluster takes is a failure of its record: it becomes a dead letter and the worker goes on."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from client.conftest import Cluster
from millpond import HandlerFailed, Message, Retry, Send, SqliteIds, Worker
from millpond.client.dead_letters import read_dead_letter

IDLE_S = 0.4
SMALL_BYTES = 2_000
VALUES = [b"%d" % n for n in range(10)]
BAD = b"4"
DELIVERIES = ["at_least_once", "exactly_once"]
REFUSALS = ["too large", "no such partition", "bad topic name", "a record without a key"]


def small_topic(broker: Cluster, policy: str = "delete") -> str:
    """A topic with two partitions that takes only small records."""
    name = f"small-{broker.group()}"
    config = {"max.message.bytes": str(SMALL_BYTES), "cleanup.policy": policy}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2, config=config)])[name].result(60)
    return name


def bad_send(refusal: str, topic: str) -> Send:
    match refusal:
        case "too large":
            # Not compressible: the limit is on what is sent.
            return Send(topic, os.urandom(5 * SMALL_BYTES), b"k", {"x": b"y"}, partition=0)
        case "no such partition":
            return Send(topic, b"v", b"k", partition=77)
        case "bad topic name":
            return Send("no topic at all", b"v", b"k")
        case _:
            return Send(topic, b"v", partition=0)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_send_is_a_failure_of_its_record(broker: Cluster, delivery: Any, refusal: str) -> None:
    source, letters, group = broker.topic(1), broker.topic(1), broker.group()
    target = small_topic(broker, "compact" if refusal == "a record without a key" else "delete")
    broker.fill(source, VALUES)

    def forward(message: Message) -> Send:
        return bad_send(refusal, target) if message.value == BAD else Send(target, message.value, b"k", partition=0)

    worker = Worker(forward, source, group=group, delivery=delivery, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    (letter,) = broker.read(letters)
    assert letter.value == BAD
    assert read_dead_letter(letter).attempts == 1
    assert sorted(each.value or b"" for each in broker.read(target, 9)) == sorted(set(VALUES) - {BAD})
    assert (worker.stats.processed, worker.stats.dead) == (9, 1)
    # It does not come back with the next start.
    again = Worker(forward, source, group=group, delivery=delivery, dead_letters=letters)
    again.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert (again.stats.processed, again.stats.dead) == (0, 0)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_refused_send_without_dead_letters_ends_the_worker_before_it(broker: Cluster, delivery: Any) -> None:
    source, target, group = broker.topic(1), small_topic(broker), broker.group()
    broker.fill(source, [BAD])
    worker = Worker(lambda _: bad_send("no such partition", target), source, group=group, delivery=delivery)
    with pytest.raises(HandlerFailed):
        worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    seen: list[Message] = []
    Worker(seen.append, source, group=group, delivery=delivery).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert [each.value for each in seen] == [BAD]


def test_a_refused_send_with_a_store_is_a_failure_of_its_record(broker: Cluster, tmp_path: Any) -> None:
    source, letters, target = broker.topic(1), broker.topic(1), small_topic(broker)
    broker.fill(source, VALUES)

    def forward(message: Message) -> Send | None:
        return bad_send("too large", target) if message.value == BAD else None

    store = SqliteIds(tmp_path / "ids.db")
    worker = Worker(
        forward, source, group=broker.group(), delivery="exactly_once", processed=store, dead_letters=letters
    )
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    store.close()
    assert (worker.stats.processed, worker.stats.dead) == (9, 1)


class Unprintable(Exception):
    """As some libraries raise them: formatting it needs what is gone by then."""

    def __str__(self) -> str:
        raise AttributeError("response")

    __repr__ = __str__


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("has_letters", [True, False])
def test_an_error_that_cannot_be_printed_is_a_failure_like_any_other(
    broker: Cluster, delivery: Any, has_letters: bool
) -> None:
    source, letters = broker.topic(1), broker.topic(1)
    broker.fill(source, VALUES)

    def handle(message: Message) -> None:
        if message.value == BAD:
            raise Unprintable

    worker = Worker(
        handle,
        source,
        group=broker.group(),
        delivery=delivery,
        retries=1,
        dead_letters=letters if has_letters else None,
    )
    if has_letters:
        worker.run(broker.bootstrap, until_idle_s=IDLE_S)
        assert (worker.stats.processed, worker.stats.dead) == (9, 1)
        (letter,) = broker.read(letters)
        assert read_dead_letter(letter).error_type.endswith("Unprintable")
        assert "AttributeError" in read_dead_letter(letter).error_message
    else:
        with pytest.raises(HandlerFailed, match="Unprintable"):
            worker.run(broker.bootstrap, until_idle_s=IDLE_S)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_dead_letter_that_is_too_large_loses_its_value_and_the_worker_goes_on(
    broker: Cluster, delivery: Any
) -> None:
    source, letters = broker.topic(1), small_topic(broker)
    large = os.urandom(2 * SMALL_BYTES)
    broker.fill(source, [large, b"small"])

    def fail(message: Message) -> None:
        raise ValueError("x" * 3_000)

    worker = Worker(fail, source, group=broker.group(), delivery=delivery, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    first, second = sorted(broker.read(letters, 2), key=lambda each: read_dead_letter(each).origin.offset)
    assert (first.value, first.header("dlq.value.omitted")) == (None, b"%d" % len(large))
    assert (second.value, second.header("dlq.value.omitted")) == (b"small", None)
    assert worker.stats.dead == 2


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_record_that_is_too_large_for_its_retry_topic_becomes_a_dead_letter(broker: Cluster, delivery: Any) -> None:
    source, letters = broker.topic(1), broker.topic(1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = f"{source}.retry.50ms"
    admin.create_topics([NewTopic(name, 1, config={"max.message.bytes": str(SMALL_BYTES)})])[name].result(60)
    large = os.urandom(2 * SMALL_BYTES)
    broker.fill(source, [large])

    def fail(message: Message) -> None:
        raise ValueError("no")

    retries = Retry(2, first_s=0.05, jitter=0, order="none", topics_from_s=0.01)
    worker = Worker(fail, source, group=broker.group(), delivery=delivery, dead_letters=letters, retries=retries)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    (letter,) = broker.read(letters)
    assert (letter.value, worker.stats.dead) == (large, 1)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_good_records_of_one_key_stay_in_order_around_a_refused_send(broker: Cluster, delivery: Any) -> None:
    source, letters, target = broker.topic(1), broker.topic(1), small_topic(broker)
    broker.fill(source, [b"%d" % n for n in range(2_000)], keys=1)

    def forward(message: Message) -> Send:
        return Send(target, os.urandom(5 * SMALL_BYTES) if message.value == b"700" else message.value, b"k")

    worker = Worker(forward, source, group=broker.group(), delivery=delivery, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert (worker.stats.processed, worker.stats.dead) == (1_999, 1)
    assert [int(each.value or b"") for each in broker.read(target, 1_999)] == [n for n in range(2_000) if n != 700]


class NoIds:
    """A store of processed ids that several handlers use at a time and that remembers nothing."""

    def once(self, record_id: str) -> Any:
        return nullcontext(record_id)

    def close(self) -> None: ...


def test_a_refused_send_with_a_store_neither_fails_nor_reorders_its_neighbours(broker: Cluster) -> None:
    source, letters, target = broker.topic(1), broker.topic(1), small_topic(broker)
    broker.fill(source, [b"%d" % n for n in range(120)])

    def forward(message: Message) -> list[Send]:
        n = int(message.value or b"")
        if n % 10 == 4:
            return [bad_send("too large", target)]
        return [Send(target, b"%d" % each, partition=0) for each in (2 * n, 2 * n + 1)]

    worker = Worker(
        forward,
        source,
        group=broker.group(),
        delivery="exactly_once",
        processed=NoIds(),
        dead_letters=letters,
        concurrency=16,
        # Many batches begin with the second Send of a handler whose first one was refused with the batch before.
        settings={"linger.ms": 20, "batch.num.messages": 5},
    )
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert (worker.stats.processed, worker.stats.dead) == (108, 12)
    written = [int(each.value or b"") for each in broker.read(target, 216)]
    assert sorted(written) == [each for n in range(120) if n % 10 != 4 for each in (2 * n, 2 * n + 1)]
    assert [each for each in written if each % 2 == 0 and written.index(each) > written.index(each + 1)] == []
