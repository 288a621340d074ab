"""A streaming query without Spark: tasks and driver as plain calls, each of which can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from support.node import Node
from support.spark_sink_task import TaskRunner
from support.topics import create_topic


@pytest.fixture
def runner(node: Node, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskRunner]:
    create_topic(node.bootstrap, topic, 2)
    with TaskRunner(node, topic, str(uuid4()), monkeypatch) as made:
        yield made


@pytest.fixture
def make_runner(
    make_node: Callable[..., Node], topic: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., TaskRunner]]:
    made: list[TaskRunner] = []

    def make(**options: str) -> TaskRunner:
        node = make_node({"transaction.state.log.num.partitions": "4"})
        create_topic(node.bootstrap, topic, 2)
        made.append(TaskRunner(node, topic, str(uuid4()), monkeypatch, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
