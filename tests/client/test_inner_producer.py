"""Delivery reports become futures."""

from __future__ import annotations

import time

from confluent_kafka import Producer as RawProducer

from millpond.client.inner_producer import Lane
from millpond.client.sent import Sent


def lane_to(bootstrap: str, **more: object) -> Lane:
    return Lane(RawProducer({"bootstrap.servers": bootstrap, "log_level": 2, **more}))


def test_reports_come_without_anybody_asking(cluster) -> None:
    topic = cluster.topic()
    lane = lane_to(cluster.bootstrap)
    future = Sent()
    lane.produce(future, topic, b"v", b"k", [("h", b"1")], 2, 1_700_000_000_000)
    place = future.result(10)
    assert (place.topic, place.partition, place.offset) == (topic, 2, 0)
    if not cluster.is_mock:  # whose clock stands still
        assert place.timestamp_ms == 1_700_000_000_000
    lane.close()


def test_a_cancelled_future_harms_nobody(cluster) -> None:
    topic = cluster.topic()
    lane = lane_to(cluster.bootstrap, **{"linger.ms": 50})
    given_up = Sent()
    wanted = Sent()
    lane.produce(given_up, topic, b"1", None, None, 0, 0)
    assert given_up.cancel()
    lane.produce(wanted, topic, b"2", None, None, 0, 0)
    assert wanted.result(10).offset == 1
    lane.close()


def test_waiting_for_room_ends_with_the_deadline() -> None:
    lane = lane_to("127.0.0.1:1")
    assert not lane.wait_for_room(time.monotonic() - 1)
    assert lane.wait_for_room(time.monotonic() + 0.01)
    assert lane.flush(0.01) == 0
    lane.close()
