"""A streaming query without Spark: its tasks and its driver as plain calls, each of which can be made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from support.node import Node
from support.spark_sink_play import Play
from support.topics import create_topic


@pytest.fixture
def play(node: Node, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    create_topic(node.bootstrap, topic, 2)
    with Play(node, topic, str(uuid4()), monkeypatch) as made:
        yield made


@pytest.fixture
def make_play(
    make_node: Callable[..., Node], topic: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Play]]:
    made: list[Play] = []

    def make(**options: str) -> Play:
        node = make_node({"transaction.state.log.num.partitions": "4"})
        create_topic(node.bootstrap, topic, 2)
        made.append(Play(node, topic, str(uuid4()), monkeypatch, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
