"""Records whose header names are not UTF-8: Kafka allows them, and librdkafka's binding cannot decode them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer as RawConsumer
from confluent_kafka import TopicPartition as RawPartition

from client.conftest import Cluster
from millpond import Consumer, Message, Send, Worker
from millpond.client.dead_letters import read_dead_letter
from millpond.wire.kernel import messages as plain
from millpond.wire.kernel.messages import read_headers
from support.foreign_headers import RawHeaders, batch_with_raw_headers
from support.raw import Raw
from support.twins import compiled, needs

fast = compiled("_messages")
TWINS = [plain.read_messages, pytest.param(getattr(fast, "read_messages", None), marks=needs(fast))]

IDLE_S = 0.4
UNREADABLE = "\ufffd"
BAD = b"\xff\xfe\xfd"
GOOD: RawHeaders = [(b"trace", b"t-1")]
FILLERS = [(b"%d" % n, GOOD) for n in range(5)]
SEVERAL_BAD: RawHeaders = [
    (b"~first", b"1"),
    (b"bad\xff", b"2"),
    (b"middle", None),
    (b"\xc3\x28\xfe", b"4"),
    (b"end", b"5"),
]


def write(
    cluster: Cluster, topic: str, records: Sequence[tuple[bytes, RawHeaders]], key: bytes | None = None
) -> None:
    with Raw(int(cluster.bootstrap.rpartition(":")[2])) as raw:
        assert not raw.produce(topic, 0, batch_with_raw_headers(records, key)).error_code


def test_a_header_name_that_is_not_utf8_costs_no_record(broker: Cluster) -> None:
    topic, group = broker.topic(1), broker.group()
    write(broker, topic, [*FILLERS, (b"odd", [(BAD, b"1"), *GOOD]), *FILLERS])
    found: list[Message] = []
    with Consumer(group, [topic], bootstrap=broker.bootstrap) as consumer:
        while len(found) < 11:
            batch = consumer.poll(500, 20.0)
            assert batch, f"only {len(found)} of 11 records came"
            found += batch
            consumer.commit()
    assert [each.offset for each in found] == list(range(11))
    assert found[5].headers == ((UNREADABLE * 3, b"1"), ("trace", b"t-1"))
    assert {each.headers for each in found if each.offset != 5} == {(("trace", b"t-1"),)}


def test_what_can_be_decoded_of_several_headers_is_delivered(broker: Cluster) -> None:
    topic = broker.topic(1)
    write(broker, topic, [(b"odd", SEVERAL_BAD)])
    (message,) = broker.read(topic)
    names = [name for name, _ in message.headers]
    assert [names[0], names[2], names[4]] == ["~first", "middle", "end"]
    assert UNREADABLE in names[1]
    assert UNREADABLE in names[3]
    assert [value for _, value in message.headers] == [b"1", b"2", None, b"4", b"5"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_worker_handles_and_forwards_such_a_record(broker: Cluster, delivery: str) -> None:
    topic, copies, group = broker.topic(1), broker.topic(1), broker.group()
    write(broker, topic, [*FILLERS, (b"odd", [(BAD, b"1")]), *FILLERS])

    def forward(message: Message) -> Send:
        return Send(copies, message.value, message.key, message.headers)

    worker = Worker(forward, topic, group=group, delivery=delivery)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert worker.stats.processed == 11
    copied = broker.read(copies, 11)
    assert [each.value for each in copied].count(b"odd") == 1
    assert len(copied) == 11


def test_such_a_record_can_be_a_dead_letter(broker: Cluster) -> None:
    topic, letters, group = broker.topic(1), broker.topic(1), broker.group()
    write(broker, topic, [(b"odd", [(BAD, b"1")]), (b"even", GOOD)])

    def refuse(message: Message) -> None:
        if message.value == b"odd":
            raise ValueError("no")

    worker = Worker(refuse, topic, group=group, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert (worker.stats.processed, worker.stats.dead) == (1, 1)
    (letter,) = broker.read(letters)
    assert letter.headers[0] == (UNREADABLE * 3, b"1")
    assert read_dead_letter(letter).origin.offset == 0


@pytest.mark.parametrize("reads", TWINS)
def test_both_twins_read_the_same_headers(broker: Cluster, reads: Any) -> None:
    topic = broker.topic(1)
    write(broker, topic, [*FILLERS, (b"odd", SEVERAL_BAD), *FILLERS])
    consumer = RawConsumer({"bootstrap.servers": broker.bootstrap, "group.id": broker.group()})
    try:
        consumer.assign([RawPartition(topic, 0, 0)])
        raws = consumer.consume(11, timeout=20)
    finally:
        consumer.close()
    made: list[Message] = []
    assert reads(raws, Message, made) == [(topic, 0, 11)]
    assert [each.headers for each in made] == [each.headers for each in broker.read(topic, 11)]
    assert [name for name, _ in made[5].headers] == ["~first", UNREADABLE, "middle", UNREADABLE, "end"]


class Undecodable:
    """A raw message of a binding that drops all headers when it cannot decode one of them."""

    def headers(self) -> None:
        b"\xff".decode()


def test_headers_that_the_binding_dropped_are_none() -> None:
    assert read_headers(Undecodable()) == ()
