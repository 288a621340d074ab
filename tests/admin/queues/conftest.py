"""Workers of a queue: members of a share group that acknowledge one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from millpond.admin.settings import Subject, alter_settings
from millpond.remote.cluster import Cluster
from millpond.testing import Pond

PATIENCE_SECONDS = 60.0


class QueueWorker:
    def __init__(self, pond: Pond, group: str, topic: str) -> None:
        settings = {
            "bootstrap.servers": pond.bootstrap,
            "group.id": group,
            "client.id": "till",
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
        self._consumer = ShareConsumer(settings)
        self._consumer.subscribe([topic])
        self.held: list[Any] = []

    def take(self) -> list[str]:
        """What comes next, as values."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.held and time.monotonic() < until:
            self.held = list(self._consumer.poll(0.5))
        assert self.held, "no records"
        assert [each.error() for each in self.held] == [None] * len(self.held)
        return [each.value().decode() for each in self.held]

    def say(self, **verdicts: str) -> None:
        """Acknowledge by value: accept, release or reject."""
        for message in list(self.held):
            verdict = verdicts.get(message.value().decode())
            if verdict is not None:
                self._consumer.acknowledge(message, AcknowledgeType[verdict.upper()])
                self.held.remove(message)
        assert [each for each in self._consumer.commit_sync(30).values() if each is not None] == []

    def leave(self) -> None:
        self._consumer.close()


@pytest.fixture
def join(pond: Pond, cluster: Cluster) -> Iterator[Callable[[str, str], QueueWorker]]:
    joined: list[QueueWorker] = []

    def start(group: str, topic: str) -> QueueWorker:
        alter_settings(cluster, Subject("group", group), {"share.auto.offset.reset": "earliest"})
        joined.append(QueueWorker(pond, group, topic))
        return joined[-1]

    yield start
    for each in joined:
        each.leave()
