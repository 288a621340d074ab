"""Kafka Streams on a node: words counted exactly once, despite a kill and the loss of the state folder.

Skipped if its archives are not available.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.committed import committed_records
from support.jars import class_path
from support.java_process import JavaProcess
from support.node import Node
from support.patience import with_time

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "kafka_streams" / "WordCount.java"
SENTENCES = ("The mill by the pond.", "the pond, and the mill", "a mill is a mill")
COUNTS = Counter({"the": 4, "mill": 4, "by": 1, "pond": 2, "and": 1, "a": 2, "is": 1})


def send(bootstrap: str, rounds: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(rounds):
        for at, sentence in enumerate(SENTENCES):
            producer.produce("sentences", sentence, partition=(number + at) % 2)
    assert producer.flush(60) == 0


def updates(bootstrap: str) -> list[tuple[str, int]]:
    """Every committed record: a word with its count at that time."""
    return [((key or b"").decode(), int(value or b"")) for key, value in committed_records(bootstrap, "words")]


def times(rounds: int) -> dict[str, int]:
    return {word: count * rounds for word, count in COUNTS.items()}


@with_time
def test_words_are_counted_exactly_once(make_node: Callable[..., Node], tmp_path: Path) -> None:
    archives = os.pathsep.join([class_path("broker"), class_path("streams")])
    if shutil.which("javac") is None:
        pytest.skip("there is no Java compiler here: apt-get install openjdk-17-jdk-headless")
    node = make_node()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for made in admin.create_topics([NewTopic("sentences", 2), NewTopic("words", 1)]).values():
        made.result(60)
    state = tmp_path / "state"
    words = ("-cp", archives, str(PROGRAM), str(state))
    program = JavaProcess(tmp_path / "said.txt", *words, environment={"MILLPOND_BOOTSTRAP": node.bootstrap})
    try:
        program.start()
        send(node.bootstrap, 10)
        program.wait_until(lambda: dict(updates(node.bootstrap)) == times(10))
        program.kill9()
        send(node.bootstrap, 10)
        program.start()
        program.wait_until(lambda: dict(updates(node.bootstrap)) == times(20))
        assert program.terminate() in (0, 143)
        # The counts are also in a topic, from which a deleted folder is restored.
        shutil.rmtree(state)
        send(node.bootstrap, 10)
        program.start()
        program.wait_until(lambda: dict(updates(node.bootstrap)) == times(30))
    finally:
        program.kill9()
    # If a word were counted twice, its count would exceed the number or go back.
    seen = updates(node.bootstrap)
    for word in COUNTS:
        counts = [count for each, count in seen if each == word]
        assert counts == sorted(set(counts)), word
    assert set(admin.list_topics(timeout=60).topics) >= {
        "word-count-counts-changelog",
        "word-count-counts-repartition",
    }
    assert "fault" not in node.journal()
