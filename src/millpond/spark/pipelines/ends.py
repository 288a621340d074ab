"""Polls the topics' end offsets, for lag during a batch and for the growth of dead letters.

The offsets are for display only: if the cluster does not answer, it is polled again later, and the jobs continue.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from millpond.client.errors import ClientError

if TYPE_CHECKING:
    from millpond.remote.cluster import Cluster

EVERY_SECONDS: Final = 2.0
PATIENCE_MS: Final = 3000


class EndsWatch:
    """A thread that keeps the ends of some topics fresh. A context manager."""

    def __init__(self, kafka: Mapping[str, str], letters: Collection[str] = ()) -> None:
        settings = {key.lower().removeprefix("kafka."): each for key, each in kafka.items()}
        self._settings = settings | {
            "default.api.timeout.ms": str(PATIENCE_MS),
            "request.timeout.ms": str(PATIENCE_MS),
        }
        self._letters = frozenset(letters)
        self.topics: frozenset[str] = frozenset()
        """Topics to poll besides the dead letters. Set it from any thread."""
        self.ends: dict[str, dict[int, int]] = {}
        self._before: dict[str, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ends of topics", daemon=True)

    def __enter__(self) -> EndsWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_MS / 1000)

    def dead_letters(self) -> dict[str, int]:
        """New records in each dead-letter topic since the first poll."""
        if self._before is None:
            return {}
        ends = self.ends
        return {
            topic: sum(ends[topic].values()) - self._before.get(topic, 0)
            for topic in sorted(self._letters)
            if topic in ends
        }

    def _run(self) -> None:
        from millpond.remote.cluster import Cluster

        cluster: Cluster | None = None
        is_last = False
        while True:
            try:
                cluster = cluster or Cluster(self._settings)
                self._ask(cluster)
            except (ClientError, OSError):
                if cluster is not None:
                    cluster.close()
                cluster = None
            if is_last:
                break
            # Poll once more at the end, to include the last records.
            is_last = self._stop.wait(EVERY_SECONDS)
        if cluster is not None:
            cluster.close()

    def _ask(self, cluster: Cluster) -> None:
        from millpond.base.ids import TopicPartition
        from millpond.remote.offsets import latest

        names = sorted(self.topics | self._letters)
        topics = cluster.topics(names) if names else {}
        partitions = [TopicPartition(topic, each) for topic, info in topics.items() for each in info.partitions]
        ends: dict[str, dict[int, int]] = {topic: {} for topic in topics}
        for partition, end in (latest(cluster, partitions) if partitions else {}).items():
            ends[partition.topic][partition.partition] = end
        if self._before is None:
            self._before = {topic: sum(ends[topic].values()) for topic in self._letters & ends.keys()}
        self.ends = ends
