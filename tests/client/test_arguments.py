"""Arguments that librdkafka's binding truncates, crashes on or refuses with a bare TypeError: here a ClientError."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from client.conftest import Cluster
from millpond import (
    AsyncConsumer,
    AsyncProducer,
    ClientError,
    ConfigError,
    Consumer,
    Message,
    Producer,
    Send,
    Worker,
)
from millpond.base.ids import TopicPartition
from support.node import eventually


def described(value: object) -> str:
    """The same in every process: xdist compares the names of tests, and objects are printed with their address."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(value))


SURROGATE = "a\ud800"
NUL = "a\0b"
HUGE = 1 << 70
NOWHERE = "127.0.0.1:1"

BAD_RECORDS: list[dict[str, Any]] = [
    *({"headers": {name: b"1"}} for name in (SURROGATE, NUL, b"a", None, 5, ("a",))),
    *({"headers": [(name, b"1")]} for name in (SURROGATE, NUL, b"a", None)),
    *({"headers": {"a": value}} for value in (SURROGATE, 5, 1.5, [], {})),
    *({"headers": headers} for headers in (5, "ab", [("a",)], [5], [("a", b"1", b"2")])),
    *({"topic": topic} for topic in (SURROGATE, NUL, b"t", None, 5, "", ".", "a b", "x" * 250, "ü")),
    *({"key": key} for key in (SURROGATE, 5, 1.5, [], {})),
    *({"value": value} for value in (SURROGATE, object(), {1, 2})),
    *({"partition": partition} for partition in (-1, 1 << 31, HUGE, "0", 1.5, True, b"0")),
]
BAD_SENDS: list[dict[str, Any]] = [
    *({"timestamp_ms": stamp} for stamp in (-5, 1 << 63, HUGE, "1", 1.5, True, datetime(2020, 1, 1))),
    *({"acks": acks} for acks in ([], "some", 2, None.__class__)),
]
BAD_CLIENT_SETTINGS: list[Any] = [5, "a=b", [("a", "b")], {5: 5}, {SURROGATE: "x"}, {NUL: "x"}]
BAD_CLIENT_SETTINGS += [{"client.id": value} for value in (SURROGATE, NUL, b"\xff", [], object())]


def record(**wrong: Any) -> dict[str, Any]:
    return {"topic": "t", "value": b"v", **wrong}


@pytest.fixture(scope="module")
def _topic(broker: Cluster) -> None:
    broker.create("t", 1)


@pytest.fixture(scope="module")
def producer(broker: Cluster, _topic: None) -> Iterator[Producer]:
    with Producer(broker.bootstrap) as made:
        yield made


@pytest.fixture(scope="module")
def consumer(broker: Cluster, _topic: None) -> Iterator[Consumer]:
    with Consumer(broker.group(), ["t"], bootstrap=broker.bootstrap) as made:
        assert eventually(lambda: bool(made.poll(1000, 0.1) is not None and made.is_at_end()))
        yield made


@pytest.mark.parametrize("wrong", [*BAD_RECORDS, *BAD_SENDS], ids=described)
def test_a_bad_record_is_refused(producer: Producer, wrong: dict[str, Any]) -> None:
    for _ in range(2):
        # The second time the shorter path for plain records is in use, where the broker may be the one to refuse.
        with pytest.raises(ClientError):
            producer.send(**record(**wrong)).result(60)
        producer.partitions("t")


@pytest.mark.usefixtures("_topic")
def test_bad_records_are_refused_by_the_async_producer(broker: Cluster) -> None:
    async def is_sent(producer: AsyncProducer, wrong: dict[str, Any]) -> bool:
        try:
            await producer.send(**record(**wrong))
        except ClientError:
            return False
        return True

    async def accepted() -> list[str]:
        async with AsyncProducer(broker.bootstrap) as producer:
            await producer.send("t", b"first")
            return [described(wrong) for wrong in (*BAD_RECORDS, *BAD_SENDS) if await is_sent(producer, wrong)]

    assert asyncio.run(accepted()) == []


def test_a_key_and_a_value_may_have_a_nul_character(broker: Cluster, producer: Producer) -> None:
    topic = broker.topic(1)
    producer.send(topic, NUL, NUL, headers={"h": NUL}).result(20)
    (message,) = broker.read(topic)
    assert (message.key, message.value, message.headers) == (NUL.encode(), NUL.encode(), (("h", NUL.encode()),))


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_bad_send_of_a_handler_is_a_failure_of_its_record(broker: Cluster, delivery: Any) -> None:
    topic, letters, copies = broker.topic(1), broker.topic(1), broker.topic(1)
    broker.fill(topic, [b"%d" % n for n in range(len(BAD_RECORDS))])

    def forward(message: Message) -> Send:
        return Send(**{"topic": copies, "value": b"v", **BAD_RECORDS[int(message.text())]})

    worker = Worker(forward, topic, group=broker.group(), delivery=delivery, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=0.4)
    assert (worker.stats.processed, worker.stats.dead) == (0, len(BAD_RECORDS))


BAD_PRODUCERS: list[dict[str, Any]] = [
    *({"bootstrap": address} for address in (5, [], NUL, SURROGATE, b"h:1")),
    *({"settings": settings} for settings in BAD_CLIENT_SETTINGS),
    *({"linger_ms": each} for each in (1e300, -1, "5", float("nan"), True)),
    *({"batch_bytes": each} for each in (HUGE, 1.5, 0, "5")),
    *({"buffer_records": each} for each in (1 << 40, 1.5, 0)),
    *({"buffer_bytes": each} for each in (HUGE, 1.5, 0)),
    *({"delivery_timeout_s": each} for each in (1e300, -1, None)),
    *({"full_timeout_s": each} for each in (1e300, "x")),
    *({"serializer": each} for each in (None, 5)),
    *({"compression": each} for each in (5, [], "brotli")),
    *({"when_full": each} for each in (5, [], "drop")),
    *({"acks": each} for each in ([], "some")),
    *({"partitioner": each} for each in (5, "best")),
    *({"settings": each} for each in ({"no.such.setting": 1}, {"acks": object()})),
    {"nothing": 5},
]


@pytest.mark.parametrize("wrong", BAD_PRODUCERS, ids=described)
@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_a_producer_that_cannot_be_is_refused(kind: Callable[..., Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        kind(**{"bootstrap": NOWHERE, **wrong})


BAD_CONSUMERS: list[dict[str, Any]] = [
    *({"group": group} for group in (5, SURROGATE, NUL, b"g", "")),
    *({"topics": topics} for topics in (5, b"t", "t", [], [5], [None], [b"t"], [""], [SURROGATE], [NUL], ["a b"])),
    *({"topics": topics} for topics in (["^("], [f"^{SURROGATE}"], {"t": 1})),
    *({"from_": from_} for from_ in (None, 1.5, [], -5, HUGE, True, "middle")),
    *({"instance": instance} for instance in (5, SURROGATE, NUL)),
    *({"session_timeout_s": each} for each in ("x", 1e300, -5, float("nan"))),
    *({"isolation": each} for each in ("x", None, [])),
    *({"protocol": each} for each in ("x", None, [])),
    *({"settings": settings} for settings in BAD_CLIENT_SETTINGS),
    *({"bootstrap": address} for address in (5, NUL, SURROGATE)),
    {"on_assigned": 5},
    {"on_lost": "x"},
    {"from_beginning_topics": 5},
]


@pytest.mark.parametrize("wrong", BAD_CONSUMERS, ids=described)
@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_a_consumer_that_cannot_be_is_refused(kind: Callable[..., Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        kind(**{"group": "g", "topics": ["t"], "bootstrap": NOWHERE, **wrong})


BAD_WORKERS: list[dict[str, Any]] = [
    *({"handler": handler} for handler in (5, None, lambda: None)),
    *({"group": group} for group in (5, None, SURROGATE, NUL, b"g", "")),
    *({"topics": topics} for topics in (5, b"t", [], [5], [SURROGATE], NUL, "a b", None)),
    *({"dead_letters": topic} for topic in (5, SURROGATE, NUL, "a b", b"t", "")),
    *({"instance": instance} for instance in (5, SURROGATE, NUL)),
    *({"from_": from_} for from_ in (None, 1.5, -5, HUGE)),
    *({"stop_timeout_s": each} for each in (1e300, -1, "x", None)),
    *({"protocol": each} for each in ("x", None)),
    *({"settings": settings} for settings in BAD_CLIENT_SETTINGS if "client.id" not in str(settings)),
    {"record_id": 5},
    {"decoder": 5},
    {"serializer": 5},
]


def handle(message: Message) -> None:
    """Never called."""


@pytest.mark.parametrize("wrong", BAD_WORKERS, ids=described)
def test_a_worker_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Worker(**{"handler": handle, "topics": "t", "group": "g", **wrong})


HERE = TopicPartition("t", 0)
BAD_PARTITIONS: list[Any] = [
    5,
    "t",
    ("t",),
    ("t", "0"),
    ("t", -1),
    ("t", 1 << 40),
    (SURROGATE, 0),
    (NUL, 0),
    (5, 0),
    None,
]
BAD_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *(("poll", (most,), {}) for most in (0, -1, "x", None, 1.5, True)),
    *(("poll", (1, timeout_s), {}) for timeout_s in ("x", None, float("nan"), True)),
    *(("next", (timeout_s,), {}) for timeout_s in ("x", None, float("nan"))),
    *(("commit", (message,), {}) for message in (5, "x", HERE)),
    *(("commit", (), {"offsets": offsets}) for offsets in (5, [HERE], {HERE: "x"}, {HERE: -5}, {HERE: HUGE}, {5: 5})),
    *(("commit", (), {"offsets": {each: 1}}) for each in BAD_PARTITIONS),
    *((name, (each,), {}) for name in ("committed", "pause", "resume", "seek_to_end") for each in (5, "t")),
    *((name, ([each],), {}) for name in ("committed", "pause", "resume", "seek_to_end") for each in BAD_PARTITIONS),
    *(("position", (each,), {}) for each in BAD_PARTITIONS),
    *(("seek", (*each, 0), {}) for each in BAD_PARTITIONS if isinstance(each, tuple) and len(each) == 2),
    *(("seek", ("t", 0, offset), {}) for offset in ("x", None, 1.5, -7, HUGE, True)),
    *(("seek_to_time", (when,), {}) for when in ("x", None, 1.5, True, -5, HUGE)),
]


@pytest.mark.parametrize("call", BAD_CALLS, ids=described)
def test_a_bad_argument_of_a_consumer_is_refused(consumer: Consumer, call: Any) -> None:
    name, arguments, named = call
    with pytest.raises(ClientError):
        getattr(consumer, name)(*arguments, **named)


def test_a_consumer_takes_as_many_records_as_one_likes(consumer: Consumer) -> None:
    assert consumer.poll(10**9, 0.0) == []
    assert consumer.poll(10, -1.0) == []


BAD_PRODUCER_CALLS = [
    *(("partitions", topic) for topic in (5, None, "", SURROGATE, NUL, "a b", b"t")),
    *((name, timeout_s) for name in ("flush", "close") for timeout_s in ("x", None, float("nan"), True)),
]


@pytest.mark.parametrize("call", BAD_PRODUCER_CALLS, ids=described)
def test_a_bad_argument_of_a_producer_is_refused(producer: Producer, call: Any) -> None:
    name, argument = call
    with pytest.raises(ClientError):
        getattr(producer, name)(argument)


@pytest.mark.parametrize("chosen", ["x", None, 1.5, -1, 99, HUGE], ids=described)
def test_a_partition_that_a_function_chose_badly_is_refused(broker: Cluster, chosen: Any) -> None:
    topic = broker.topic(1)
    with (
        Producer(broker.bootstrap, partitioner=lambda *_: chosen) as producer,
        pytest.raises(ConfigError, match="the partitioner chose"),
    ):
        producer.send(topic, b"v")


def test_a_refused_setting_does_not_show_its_value() -> None:
    with pytest.raises(ConfigError) as refusal:
        Producer(NOWHERE, settings={"sasl.password": "secret\0"})
    assert "secret" not in str(refusal.value)
