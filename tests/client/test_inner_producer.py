"""Delivery reports become futures."""

from __future__ import annotations

import time

from confluent_kafka import Producer as RawProducer

from millpond.client.inner_producer import InnerProducer
from millpond.client.reach import Reach
from millpond.client.sent import Sent


def lane_to(bootstrap: str, **more: object) -> InnerProducer:
    settings = {"bootstrap.servers": bootstrap, "log_level": 2, **more}
    return InnerProducer(RawProducer(settings), Reach(settings))


def test_reports_come_without_anybody_asking(cluster) -> None:
    topic = cluster.topic()
    inner = lane_to(cluster.bootstrap)
    future = Sent()
    inner.produce(future, topic, b"v", b"k", [("h", b"1")], 2, 1_700_000_000_000)
    place = future.result(60)
    assert (place.topic, place.partition, place.offset) == (topic, 2, 0)
    if not cluster.is_mock:  # whose clock stands still
        assert place.timestamp_ms == 1_700_000_000_000
    inner.close()


def test_a_cancelled_future_harms_nobody(cluster) -> None:
    topic = cluster.topic()
    inner = lane_to(cluster.bootstrap, **{"linger.ms": 50})
    given_up = Sent()
    wanted = Sent()
    inner.produce(given_up, topic, b"1", None, None, 0, 0)
    assert given_up.cancel()
    inner.produce(wanted, topic, b"2", None, None, 0, 0)
    assert wanted.result(60).offset == 1
    inner.close()


def test_waiting_for_room_ends_with_the_deadline() -> None:
    inner = lane_to("127.0.0.1:1")
    assert not inner.wait_for_room(time.monotonic() - 1)
    assert inner.wait_for_room(time.monotonic() + 0.01)
    assert inner.flush(0.01) == 0
    inner.close()
