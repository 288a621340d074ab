"""The producer against Millpond and against librdkafka's mock cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from millpond import (
    BufferFull,
    ClientError,
    Closed,
    ConfigError,
    Delivery,
    Producer,
    SendFailed,
    Timeout,
)
from millpond.wire.partitioner import partition_for_key
from support.node import eventually

NOBODY = "127.0.0.1:1"


@pytest.mark.smoke
def test_a_send_returns_where_the_record_was_written(cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.bootstrap) as producer:
        sent = producer.send(topic=topic, key="customer-42", value={"total": 7}, headers={"trace": "abc"}, acks="all")
        place = sent.result(60)
    (found,) = cluster.read(topic)
    assert (found.topic, found.partition, found.offset) == (place.topic, place.partition, place.offset)
    assert (found.key, found.json(), found.header("trace")) == (b"customer-42", {"total": 7}, b"abc")
    if not cluster.is_mock:  # whose clock stands still
        assert abs(place.timestamp_ms / 1000 - time.time()) < 60


@pytest.mark.smoke
def test_keys_go_where_java_puts_them(cluster) -> None:
    topic = cluster.topic()
    keys = [f"key-{n}" for n in range(30)]
    with Producer(cluster.bootstrap) as producer:
        places = [producer.send(topic, b"", key).result(60) for key in keys]
    assert [place.partition for place in places] == [partition_for_key(key.encode(), 4) for key in keys]


def test_a_delay_and_a_priority_are_headers(broker) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"", headers={"trace": "abc"}, at=1_893_456_000_000, priority=9).result(60)
    (found,) = broker.read(topic)
    assert dict(found.headers) == {"trace": b"abc", "queue.deliver-at": b"1893456000000", "queue.priority": b"9"}


def test_round_robin_and_a_custom_partitioner(broker) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap, partitioner="round_robin") as producer:
        places = [producer.send(topic, b"", "same") for _ in range(8)]
        assert Counter(place.result(60).partition for place in places) == {0: 2, 1: 2, 2: 2, 3: 2}
    with Producer(broker.bootstrap, partitioner=lambda _key, count: count - 1) as producer:
        assert producer.send(topic, b"", "k").result(60).partition == 3
        assert producer.send(topic, b"", "k", partition=0).result(60).partition == 0
        assert producer.partitions(topic) == 4
    with (
        Producer(broker.bootstrap, partitioner=lambda _key, count: count) as producer,
        pytest.raises(ConfigError, match="0 to 3"),
    ):
        producer.send(topic, b"")


def test_each_send_chooses_its_acknowledgement(broker) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap, linger_ms=0) as producer:
        assert producer.send(topic, b"0", acks=0, partition=0).result(60).offset is None
        assert producer.send(topic, b"1", acks=1, partition=1).result(60).offset == 0
        assert producer.send(topic, b"all", partition=2).result(60).offset == 0
        with pytest.raises(ConfigError, match="acks"):
            producer.send(topic, b"", acks=2)  # type: ignore[arg-type]
    assert {message.value for message in broker.read(topic, 3)} == {b"0", b"1", b"all"}


@pytest.mark.smoke
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(broker, compression: str) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap, compression=compression) as producer:  # type: ignore[arg-type]
        for n in range(20):
            producer.send(topic, b"%d" % n * 100)
    assert len(broker.read(topic, 20)) == 20


def test_leaving_the_block_flushes_also_after_an_error(broker) -> None:
    topic = broker.topic()

    def fail() -> None:
        with Producer(broker.bootstrap, linger_ms=5_000) as producer:
            producer.send(topic, b"sent all the same")
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert [message.value for message in broker.read(topic)] == [b"sent all the same"]


def test_a_full_buffer_raises_when_asked_to() -> None:
    producer = Producer(NOBODY, buffer_records=10, when_full="raise", delivery_timeout_s=60)
    for _ in range(10):
        producer.send("orders", b"x")
    with pytest.raises(BufferFull, match="send slower"):
        producer.send("orders", b"x")
    assert producer.buffered() >= 10
    with pytest.raises(Timeout, match="10 records"):
        producer.close(0.05)


def test_a_full_buffer_blocks_until_the_timeout() -> None:
    producer = Producer(NOBODY, buffer_records=1, full_timeout_s=0.3)
    kept = producer.send("orders", b"x")
    began = time.monotonic()
    with pytest.raises(BufferFull, match=r"for 0\.3 s"):
        producer.send("orders", b"x")
    assert time.monotonic() - began >= 0.3
    with pytest.raises(Timeout):
        producer.close(0.05)
    assert isinstance(kept.exception(60), SendFailed), "what is left at the end fails instead of hanging"


def test_blocking_lets_everything_through_a_small_buffer(broker) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap, buffer_records=20, linger_ms=0) as producer:
        futures = [producer.send(topic, b"%d" % n) for n in range(500)]
        assert producer.buffered() <= 2 * 20, "reports on their way count too"
    assert len({(f.result().partition, f.result().offset) for f in futures}) == 500


def test_an_undeliverable_record_fails_with_advice() -> None:
    producer = Producer(NOBODY, delivery_timeout_s=0.3, linger_ms=0)
    with pytest.raises(SendFailed, match="delivery_timeout_s"):
        producer.send("orders", b"x").result(60)
    producer.close()


@pytest.mark.smoke
def test_a_record_too_large_is_refused_at_once(broker) -> None:
    with Producer(broker.bootstrap) as producer, pytest.raises(SendFailed, match=r"message\.max\.bytes"):
        producer.send(broker.topic(), b"x" * 2_000_000)


def test_a_closed_producer_refuses_every_call(broker) -> None:
    topic = broker.topic()
    producer = Producer(broker.bootstrap)
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.partitions(topic)
    with pytest.raises(Closed):
        producer.send(topic, b"")
    assert broker.read(topic, 0) == []


def test_a_send_waiting_for_room_fails_when_the_producer_is_closed() -> None:
    producer = Producer(NOBODY, buffer_records=1, full_timeout_s=60)
    kept = producer.send("orders", b"x")
    with ThreadPoolExecutor(1) as aside:
        waiting = aside.submit(producer.send, "orders", b"y")
        assert not wait([waiting], 0.2).done
        with pytest.raises(Timeout):
            producer.close(0.05)
        with pytest.raises(Closed):
            waiting.result(20)
    assert isinstance(kept.exception(20), SendFailed)


def test_a_send_in_a_callback_does_not_wait_for_room() -> None:
    producer = Producer(NOBODY, buffer_records=1, full_timeout_s=60, delivery_timeout_s=0.2, linger_ms=0)
    heard: list[BaseException] = []

    def send_again(_: object) -> None:
        try:
            producer.send("orders", b"again")
        except ClientError as refusal:
            heard.append(refusal)

    producer.send("orders", b"x").add_done_callback(send_again)
    assert eventually(lambda: heard, 20)
    assert isinstance(heard[0], BufferFull)
    producer.close()


def test_a_custom_serializer(broker) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap, serializer=lambda value, name: f"{name}={value}".encode()) as producer:
        producer.send(topic, 7)
    assert broker.read(topic)[0].value == f"{topic}=7".encode()


@pytest.mark.parametrize("reads", ["the sender", "the serving thread"])
def test_a_callback_may_send_many_records(broker, reads: str) -> None:
    """librdkafka was asked for reports inside its own report, which ended the process."""
    topic = broker.topic()
    more: list[Future[Delivery]] = []
    with Producer(broker.bootstrap) as producer:
        first = producer.send(topic, b"first")
        first.add_done_callback(lambda _: more.extend(producer.send(topic, b"%d" % n) for n in range(500)))
        if reads == "the sender":
            producer.flush()
        assert eventually(lambda: len(more) == 500)
        assert len({(each.result(60).partition, each.result(60).offset) for each in more}) == 500


@pytest.mark.parametrize("reads", ["the sender", "the serving thread"])
@pytest.mark.parametrize("what", ["flush", "close"])
def test_flush_and_close_are_refused_in_a_callback(broker, reads: str, what: str) -> None:
    topic = broker.topic()
    heard: list[BaseException] = []
    with Producer(broker.bootstrap) as producer:

        def wait(_: object) -> None:
            try:
                getattr(producer, what)()
            except ClientError as refusal:
                heard.append(refusal)

        producer.send(topic, b"1").add_done_callback(wait)
        if reads == "the sender":
            producer.flush()
        assert eventually(lambda: heard)
        assert "elsewhere" in str(heard[0])
        assert producer.send(topic, b"2").result(60).topic == topic, "and it goes on"


def test_a_callback_may_send_with_a_partitioner(broker) -> None:
    topic, other = broker.topic(), broker.topic()
    more: list[Future[Delivery]] = []
    with Producer(broker.bootstrap, partitioner="round_robin") as producer:
        producer.send(topic, b"1").add_done_callback(lambda _: more.append(producer.send(other, b"2")))
        assert eventually(lambda: more)
        assert more[0].result(60).topic == other


def test_keys_may_be_text_or_any_kind_of_bytes(broker) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap) as producer:
        for key in ("k\u00e9y", "k\u00e9y".encode(), bytearray("k\u00e9y".encode()), memoryview("k\u00e9y".encode())):
            producer.send(topic, b"", key)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a key is text or bytes"):
            producer.send(topic, b"", 7)  # type: ignore[arg-type]
    assert [message.key for message in broker.read(topic, 4)] == ["k\u00e9y".encode()] * 4


FORKS = """
import os, signal, sys
from millpond import AsyncProducer, ClientError, Producer
import asyncio

bootstrap, topic, how = sys.argv[1:]

def refused(act):
    try:
        act()
    except ClientError as refusal:
        return "create a new one in the child" in str(refusal)
    return False

async def queue(producer):
    return await (await producer.queue(topic, b"v", "k"))

unused = Producer(bootstrap)
used = AsyncProducer(bootstrap) if how == "async" else Producer(bootstrap)
if how == "async":
    asyncio.run(queue(used))
else:
    used.send(topic, b"v", "k").result(60)
child = os.fork()
if not child:
    signal.alarm(60)
    if how == "async":
        fine = refused(lambda: asyncio.run(queue(used))) and refused(lambda: asyncio.run(used.flush()))
        asyncio.run(used.close())
    else:
        fine = refused(lambda: used.send(topic, b"v", "k")) and refused(lambda: used.send(topic, {"v": 1}))
        fine = fine and refused(used.flush) and refused(lambda: used.partitions(topic))
        used.close()
    fine = fine and unused.send(topic, b"of the child").result(30).topic == topic
    unused.close()
    os._exit(0 if fine else 1)
assert os.waitpid(child, 0)[1] == 0
if how == "async":
    asyncio.run(queue(used))
    asyncio.run(used.close())
else:
    used.send(topic, b"v", "k").result(60)
    used.close()
unused.close()
"""


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_used_producer_is_refused_in_a_forked_child(broker, how: str) -> None:
    """What sends the records is not in the child: they stayed in its buffer without a word."""
    topic = broker.topic()
    subprocess.run([sys.executable, "-c", FORKS, broker.bootstrap, topic, how], check=True, timeout=120)
    assert len(broker.read(topic, 3)) == 3


INSIDE = """
import signal, sys, threading, time
from millpond import ClientError, Producer, SendFailed
from millpond.client import send_future

how = sys.argv[1]
heard, refused, records = threading.Event(), [], []

def use(*_):
    if heard.is_set():
        return
    records.extend(producer.send("orders", b"1") for _ in range(300))
    for act in (producer.flush, producer.close):
        try:
            act()
        except ClientError as refusal:
            refused.append("call it elsewhere" in str(refusal))
    heard.set()

producer = Producer("127.0.0.1:1", settings={"error_cb": use} if how == "error" else {}, delivery_timeout_s=20)
records.append(producer.send("orders", b"0"))
if how == "signal":
    # It meets the sender in the middle of a report.
    signal.signal(signal.SIGUSR1, use)
    main, of_record = threading.get_ident(), send_future.failure
    def interrupted(topic, error):
        if threading.get_ident() == main and not heard.is_set():
            signal.raise_signal(signal.SIGUSR1)
        return of_record(topic, error)
    send_future.failure = interrupted
    inner = producer._default_inner
    inner._flushes.add("the serving thread steps back")
    time.sleep(0.3)
    inner.raw.purge()
    while not heard.is_set():
        records.append(producer.send("orders", b"2"))
    inner._flushes.clear()
assert heard.wait(60)
assert refused == [True, True], refused
try:
    producer.close(0.1)
except ClientError:
    pass
assert all(isinstance(each.exception(60), SendFailed) for each in records)
"""


@pytest.mark.parametrize("how", ["error", "signal"])
def test_code_inside_a_report_may_send_but_not_flush_or_close(how: str) -> None:
    """To ask librdkafka for reports inside that ended the whole process."""
    subprocess.run([sys.executable, "-c", INSIDE, how], check=True, timeout=120)
