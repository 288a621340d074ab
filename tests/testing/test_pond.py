"""A broker for tests: quick to have, and its faults are what they say."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from tests.support.own_process import in_own_process

from millpond import Message
from millpond.base.settings import SettingError
from millpond.testing import Pond, TooFew
from support.node import eventually

pytestmark = pytest.mark.boundary


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


def test_it_is_ready_well_under_a_second() -> None:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        with Pond() as pond:
            pond.produce(pond.new_topic(), "x")
            times.append(time.perf_counter() - began)
    assert min(times) < 0.5


def test_what_is_produced_is_consumed(millpond: Pond) -> None:
    millpond.create_topic("orders", partitions=3, cleanup_policy="compact")
    written = millpond.produce("orders", ("a", "1"), ("b", b"2"), ("c", None), headers={"h": b"x"}, partition=1)
    assert [(message.partition(), message.offset()) for message in written] == [(1, 0), (1, 1), (1, 2)]
    read = millpond.consume("orders", 3)
    assert [(message.key, message.value, message.headers) for message in read] == [
        (b"a", b"1", (("h", b"x"),)),
        (b"b", b"2", (("h", b"x"),)),
        (b"c", None, (("h", b"x"),)),
    ]


def test_a_group_goes_on_where_it_stopped(millpond: Pond) -> None:
    topic = millpond.new_topic()
    millpond.produce(topic, "1", "2", "3")
    assert values(millpond.consume(topic, 2, group="billing")) == [b"1", b"2"]
    assert values(millpond.consume(topic, 1, group="billing")) == [b"3"]
    assert values(millpond.consume(topic, 3)) == [b"1", b"2", b"3"]


def test_too_few_records_raise_with_those_that_arrived(millpond: Pond) -> None:
    topic = millpond.new_topic()
    millpond.produce(topic, "only")
    with pytest.raises(TooFew, match=r"1 of 2 records came from topic-\S+ within 0.3 s") as failure:
        millpond.consume(topic, 2, timeout=0.3)
    assert values(failure.value.messages) == [b"only"]
    with pytest.raises(TooFew, match="0 of 1"):
        millpond.consume("nowhere", 1, timeout=0.1)


def test_a_refused_write_raises(millpond: Pond) -> None:
    topic = millpond.new_topic(max_message_bytes=100)
    with pytest.raises(KafkaException, match=r"too large|MSG_SIZE"):
        millpond.produce(topic, b"x" * 1000)


def test_a_missing_topic_fails_soon(make_millpond: Callable[..., Pond]) -> None:
    pond = make_millpond(settings={"auto_create_topics_enable": False})
    began = time.monotonic()
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        pond.produce("nowhere", "x")
    assert time.monotonic() - began < 8


def test_the_journal_tells_of_every_life(millpond: Pond) -> None:
    millpond.kill()
    millpond.restart()
    millpond.stop()
    lives = [line for line in millpond.journal if line.startswith("pond: ")]
    assert lives == ["pond: started", "pond: killed", "pond: started", "pond: stopped"]


def test_settings_reach_the_broker_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    with Pond(settings={"num_partitions": 4, "auto.create.topics.enable": True}, folder=tmp_path / "d") as pond:
        pond.produce("made-by-itself", "x")
        assert len(pond.admin.list_topics(timeout=60).topics["made-by-itself"].partitions) == 4
    assert (tmp_path / "d").exists(), "a folder that was given stays"
    with pytest.raises(Exception, match=r"num\.partition"):
        Pond(settings={"num_partition": 4}).__enter__()


def test_its_own_folder_goes_with_it() -> None:
    with Pond() as pond:
        assert any(pond.folder.iterdir())
    assert not pond.folder.exists()


@pytest.mark.smoke
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_killed_and_restarted_it_has_what_it_acknowledged(mode: str, make_millpond: Callable[..., Pond]) -> None:
    pond = make_millpond(mode=mode)
    topic = pond.new_topic()
    pond.produce(topic, "before")
    pond.kill()
    assert not pond.is_running
    with pytest.raises(KafkaException):
        pond.admin.list_topics(timeout=0.2)
    pond.restart()
    pond.produce(topic, "after")
    pond.restart()
    assert values(pond.consume(topic, 2)) == [b"before", b"after"]


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_paused_broker_answers_only_after_resume(mode: str, make_millpond: Callable[..., Pond]) -> None:
    pond = make_millpond(mode=mode)
    topic = pond.new_topic()
    pond.produce(topic, "warm")
    acknowledged: list[object] = []
    with pond.pause():
        pond.producer.produce(topic, "late", on_delivery=lambda fault, _: acknowledged.append(fault))
        assert pond.producer.flush(0.3) == 1
        assert not acknowledged
    assert pond.producer.flush(60) == 0
    assert acknowledged == [None]


def test_slowed_down_it_takes_longer_until_sped_up(millpond: Pond) -> None:
    topic = millpond.new_topic()

    def seconds() -> float:
        began = time.monotonic()
        millpond.produce(topic, "x")
        return time.monotonic() - began

    seconds()
    with millpond.slow_down(300):
        assert seconds() >= 0.3
    # Slowed down none could be as quick; a busy machine may take several.
    assert any(seconds() < 0.3 for _ in range(200))


@pytest.mark.parametrize("fault", ["drop_connections", "half_open"])
def test_clients_live_through_broken_connections(fault: str, millpond: Pond) -> None:
    topic = millpond.new_topic()
    result = millpond.client_settings(enable_idempotence=True, socket_timeout_ms=1000, linger_ms=0)
    from confluent_kafka import Producer

    producer = Producer(result)
    for number in range(10):
        producer.produce(topic, str(number))
        if number == 5:
            producer.flush(60)
            assert getattr(millpond, fault)() >= 1
    assert producer.flush(60) == 0
    assert values(millpond.consume(topic, 10)) == [str(number).encode() for number in range(10)]
    with pytest.raises(TooFew):
        millpond.consume(topic, 11, timeout=0.2)


@in_own_process
def test_many_lives_leave_no_threads_descriptors_or_folders() -> None:
    def left() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    with Pond():
        pass
    gc.collect()
    threads, descriptors = left()
    for _ in range(5):
        with Pond() as pond:
            socket.create_connection(("127.0.0.1", int(pond.bootstrap.split(":")[1])), 5).close()
            pond.drop_connections()
            pond.restart()
    with pytest.raises(SettingError), Pond(settings={"no_such": 1}):
        pass
    assert eventually(lambda: left()[0] <= threads and left()[1] <= descriptors), (left(), threads, descriptors)


def test_several_at_once_keep_apart(make_millpond: Callable[..., Pond]) -> None:
    one, two = make_millpond(), make_millpond()
    one.create_topic("t")
    assert "t" not in two.admin.list_topics(timeout=60).topics
    assert one.bootstrap != two.bootstrap
