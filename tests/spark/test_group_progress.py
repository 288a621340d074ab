"""What a query has finished, as a group's offsets."""

from __future__ import annotations

import logging

import pytest

from millpond.base.ids import TopicPartition
from millpond.client.cluster import offsets as cluster_offsets
from millpond.client.cluster.cluster import Cluster
from millpond.client.errors import CommitFailed
from millpond.spark.group_progress import GroupProgress
from support.node import Node
from support.spark_source import committed
from support.topics import create_topic


def test_offsets_are_committed_once_each(node: Node, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(node.bootstrap, topic, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    asked = []
    commit = cluster_offsets.commit_group
    monkeypatch.setattr(cluster_offsets, "commit_group", lambda *given: (asked.append(given[2]), commit(*given)))
    progress = GroupProgress(f"{topic}-group")
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        progress.finished(cluster, {first: 5, second: 7})
        progress.finished(cluster, {first: 5, second: 7})
        progress.finished(cluster, {first: 5, second: 9})
    assert asked == [{first: 5, second: 7}, {second: 9}]
    assert committed(node, f"{topic}-group", topic) == {0: 5, 1: 9}


def test_a_commit_that_fails_is_told_once_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*given: object) -> None:
        asked.append(given[2])
        raise CommitFailed("the group has members of its own")

    monkeypatch.setattr(cluster_offsets, "commit_group", refuse)
    progress = GroupProgress("busy")
    place = TopicPartition("t", 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            progress.finished(None, {place: 5})  # type: ignore[arg-type]
    assert asked == [{place: 5}] * 3
    assert caplog.text.count("not shown as group busy: the group has members") == 1
