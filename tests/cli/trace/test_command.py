"""`millpond trace` as a user runs it, against a node and against another broker that speaks Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from millpond.testing import Pond


def hops_of(result: Any) -> dict[str, dict[str, Any]]:
    assert result.code == 0, result.err
    return {hop["name"]: hop for hop in result.objects[0]["hops"]}


def test_the_chart_shows_every_hop_on_80_columns(millpond: Any) -> None:
    result = millpond.succeeds("trace", "-n", "10")
    assert result.lines[0] == "10 records of 1000 bytes to a temporary topic, 1 replica, acks=all"
    names = [line.split()[0] for line in result.lines if re.match(r"\w+ +[\d.]", line)]
    assert names[:8] == ["linger", "send", "append", "sync", "acknowledge", "fetch", "process", "acknowledged"]
    assert max(map(len, result.lines)) <= 80
    assert "cannot be told apart from outside" in result.out
    assert "millpond-trace" not in millpond("topic", "list").out, "its own topic is deleted again"


def test_hops_add_up_and_linger_is_as_requested(millpond: Any) -> None:
    result = millpond("trace", "-n", "10", "--linger", "40", "--json")
    hops = hops_of(result)
    assert 40 <= hops["linger"]["p50_ms"] < 120
    facts = result.objects[0]
    acknowledged = next(total for total in facts["totals"] if total["name"] == "acknowledged")
    parts = sum(hops[name]["p50_ms"] for name in ("linger", "send", "append", "sync", "acknowledge"))
    assert parts == pytest.approx(acknowledged["p50_ms"], rel=0.25)
    assert abs(facts["clock_ms"]) < 50, "broker and client share a clock here"


def test_a_topic_of_the_users_gets_marked_records_and_keeps_them(millpond: Any, topic: str) -> None:
    millpond.succeeds("trace", "--topic", topic, "-n", "3", "--acks", "1", "--linger", "0")
    read = millpond("consume", topic, "--from", "beginning", "--until-end", "--json-lines").objects
    assert len(read) == 3 + 3, "three to warm up"
    assert all("millpond-trace" in record["headers"] for record in read)


def test_with_commit_the_readers_commit_is_part_of_process(millpond: Any) -> None:
    without = hops_of(millpond("trace", "-n", "5", "--acks", "1", "--json"))
    committing = hops_of(millpond("trace", "-n", "5", "--acks", "1", "--commit", "--json"))
    assert committing["process"]["p50_ms"] > without["process"]["p50_ms"]
    assert "millpond-trace" not in millpond("group", "list").out


def test_what_slows_the_way_shows_in_the_hops_of_the_way(lonely: Any, make_millpond: Any) -> None:
    pond: Pond = make_millpond(mode="process")
    with pond.slow_down(60):
        hops = hops_of(lonely("trace", "-b", pond.bootstrap, "-n", "5", "--linger", "0", "--json"))
    assert hops["append"]["p50_ms"] > 50
    assert hops["linger"]["p50_ms"] < 50


@pytest.fixture
def another_broker() -> Iterator[str]:
    """librdkafka's own mock cluster of three brokers."""
    holder = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "", "log_level": 0})
    holder.list_topics("elsewhere", timeout=10)
    brokers = holder.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del holder


def test_another_broker_is_traced_the_same_way(lonely: Any, another_broker: str) -> None:
    result = lonely("trace", "-b", another_broker, "--topic", "elsewhere", "-n", "5", "--json")
    hops = hops_of(result)
    assert list(hops) == ["linger", "send", "append", "replicate", "acknowledge", "fetch", "process"]
    assert result.objects[0]["replicas"] == 3


def test_errors_are_one_sentence(lonely: Any, millpond: Any, topic: str) -> None:
    gone = millpond("trace", "--topic", "nowhere")
    assert (gone.code, gone.err) == (
        1,
        "millpond: There is no topic nowhere; create it with `millpond topic create nowhere`.\n",
    )
    beyond = millpond("trace", "--topic", topic, "-p", "7")
    assert (beyond.code, "there is no partition 7." in beyond.err) == (1, True)
    alone = lonely("trace", "-b", "127.0.0.1:1")
    assert (alone.code, alone.err.startswith("millpond: Nothing listens on 127.0.0.1:1")) == (1, True)
