"""End offsets polled during a run; an unreachable cluster does not stop it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millpond.spark.pipelines import ends as e
from millpond.spark.pipelines.ends import EndsWatch
from support.node import Node


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_lag_and_dead_letters_as_they_grow(node: Node, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e, "EVERY_SECONDS", 0.05)
    settings = {"bootstrap.servers": node.bootstrap}
    letters = f"{topic}.dlq"
    admin = AdminClient(settings)
    for future in admin.create_topics([NewTopic(topic, 2), NewTopic(letters, 1)]).values():
        future.result(60)
    producer = Producer(settings)

    def send(name: str, partition: int, count: int) -> None:
        for _ in range(count):
            producer.produce(name, b"x", partition=partition)
        assert producer.flush(60) == 0

    send(letters, 0, 4)
    with EndsWatch({"kafka.bootstrap.servers": node.bootstrap}, {letters, f"{topic}.never"}) as watch:
        wait_for(lambda: letters in watch.ends)
        assert watch.dead_letters() == {letters: 0}, "what was there before is not of this run"
        watch.topics = frozenset({topic})
        send(topic, 1, 7)
        send(letters, 0, 3)
        wait_for(lambda: watch.ends.get(topic) == {0: 0, 1: 7} and watch.dead_letters() == {letters: 3})
        monkeypatch.setattr(e, "EVERY_SECONDS", 60.0)
        time.sleep(0.2)
        send(letters, 0, 2)
    assert watch.dead_letters() == {letters: 5}, "what came last is seen at the end"


def test_an_unreachable_cluster_is_polled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(e, "PATIENCE_MS", 100)
    with EndsWatch({"kafka.bootstrap.servers": "127.0.0.1:1"}, {"letters"}) as watch:
        time.sleep(0.5)
        assert watch._thread.is_alive()
        assert (watch.ends, watch.dead_letters()) == ({}, {})
    assert not watch._thread.is_alive()
