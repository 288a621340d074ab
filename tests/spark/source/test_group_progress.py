"""A query's finished offsets as a group's commits."""

from __future__ import annotations

import logging
import math
import time

import pytest

from millpond.base.ids import TopicPartition
from millpond.client.errors import CommitFailed
from millpond.remote import offsets as cluster_offsets
from millpond.spark.source.group_progress import GroupProgress
from support.node import Node
from support.spark_source import committed
from support.topics import create_topic


def test_only_changed_offsets_are_committed(node: Node, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(node.bootstrap, topic, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    requests = []
    commit = cluster_offsets.commit_group
    monkeypatch.setattr(cluster_offsets, "commit_group", lambda *given: (requests.append(given[2]), commit(*given)))
    progress = GroupProgress(f"{topic}-group", {"bootstrap.servers": node.bootstrap})
    progress.finished({first: 5, second: 7})
    progress.finished({first: 5, second: 7})
    progress.finished({first: 5, second: 9})
    progress.close()
    assert requests == [{first: 5, second: 7}, {second: 9}]
    assert committed(node, f"{topic}-group", topic) == {0: 5, 1: 9}


def test_a_failed_commit_is_logged_once_and_retried_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def refuse(*given: object) -> None:
        requests.append(given[2])
        raise CommitFailed("the group has members of its own")

    monkeypatch.setattr(cluster_offsets, "commit_group", refuse)
    progress = GroupProgress("busy", {"bootstrap.servers": "127.0.0.1:1"})
    partition = TopicPartition("t", 0)
    with caplog.at_level(logging.WARNING):
        progress.finished({partition: 5})
        progress.finished({partition: 6})
        assert requests == [{partition: 5}], "the query does not wait for it at every batch"
        monkeypatch.setattr(time, "monotonic", lambda: math.inf)
        progress.finished({partition: 7})
    assert requests == [{partition: 5}, {partition: 7}]
    assert caplog.text.count("not shown as group busy: the group has members") == 1
