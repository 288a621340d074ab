"""What a program wants to be called with may raise: nothing is lost or sent twice by it, and everything goes on."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from millpond import Consumer, Message, Producer
from support.node import eventually

EVERY_MS = {"statistics.interval.ms": 5}


class Broken:
    """Called with anything, it raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1
        raise self.error("broken")


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_reports_are_read_on_after_a_callback_of_the_settings_raised(broker, error: type[BaseException]) -> None:
    topic = broker.topic()
    broken = Broken(error)
    with Producer(broker.bootstrap, settings=EVERY_MS | {"stats_cb": broken}) as producer:
        producer.send(topic, b"1")
        assert eventually(lambda: broken.calls > 2)
        assert producer.send(topic, b"2").result(60).topic == topic


def test_reports_are_read_on_after_the_callback_of_a_record_has_left_its_thread(broker) -> None:
    topic = broker.topic()
    left = Broken(SystemExit)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"1").add_done_callback(left)
        assert eventually(lambda: left.calls == 1)
        assert producer.send(topic, b"2").result(60).topic == topic


@pytest.mark.parametrize("error", [BufferError, ValueError])
def test_a_record_is_sent_once_whatever_a_callback_raises_meanwhile(broker, error: type[BaseException]) -> None:
    """The sender reads reports now and then: what that raised was taken for a record that had not been taken."""
    topic = broker.topic()
    broken = Broken(error)
    count = 20_000
    with Producer(broker.bootstrap, settings={"statistics.interval.ms": 1, "stats_cb": broken}) as producer:
        futures = [producer.send(topic, b"%d" % n, partition=0) for n in range(count // 2)]
        futures += [producer.send(topic, b"%d" % n, "key") for n in range(count // 2, count)]
        producer.flush()
    assert broken.calls
    assert all(each.done() for each in futures)
    found = broker.read(topic, count)
    assert len(found) == count


def test_no_record_is_lost_when_a_callback_raises_while_records_are_read(broker) -> None:
    topic = broker.topic()
    count = 30_000
    with Producer(broker.bootstrap) as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, partition=0)
    broken = Broken(ValueError)
    found: list[Message] = []
    raised = 0
    settings = {"statistics.interval.ms": 1, "stats_cb": broken}
    consumer = Consumer(None, [topic], bootstrap=broker.bootstrap, settings=settings)

    def read() -> bool:
        nonlocal raised
        try:
            found.extend(consumer.poll(500, 0.5))
        except ValueError:
            raised += 1
        return len(found) >= count

    eventually(read)
    with suppress(ValueError):
        consumer.close()
    assert [message.offset for message in found] == list(range(count))
    assert raised, "who polls hears of it"
