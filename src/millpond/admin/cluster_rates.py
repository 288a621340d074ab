"""Samples a cluster repeatedly: its health, its write rates, the lag of groups. Two samples give rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millpond.admin.dead_letters.letters import INTERNAL
from millpond.admin.health import Health, read_health
from millpond.admin.offsets import bounds_of
from millpond.admin.topics import led_partitions
from millpond.remote.cluster import Cluster

SAMPLES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """The sums over all partitions of a topic."""

    partitions: int
    offsets: int
    """End offsets minus start offsets. Compaction and control records use offsets without a visible record."""
    end: int
    """The sum of the end offsets."""


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The cluster at one moment."""

    at_seconds: float
    health: Health
    topics: Mapping[str, TopicTotals]
    """Without internal topics."""

    @property
    def partitions(self) -> int:
        return sum(each.partitions for each in self.topics.values())

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.health.groups)


def sample_cluster(cluster: Cluster) -> ClusterSample:
    health = read_health(cluster)
    topics = {name: each for name, each in cluster.topics().items() if not name.startswith(INTERNAL)}
    offsets, ends = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
    for partition, bound in bounds_of(cluster, led_partitions(topics.values())).items():
        offsets[partition.topic] += max(bound.end - bound.start, 0)
        ends[partition.topic] += bound.end
    totals = {name: TopicTotals(len(each.partitions), offsets[name], ends[name]) for name, each in topics.items()}
    return ClusterSample(time.monotonic(), health, totals)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second; none for what the earlier sample did not have."""

    written: Mapping[str, float] = field(default_factory=dict)
    """Records, by topic."""
    read: Mapping[str, float] = field(default_factory=dict)
    """Records, by group: how fast its committed offsets advance."""
    lag_growth: Mapping[str, float] = field(default_factory=dict)
    """Records, by group; negative while it catches up."""

    @property
    def written_in_all(self) -> float:
        return sum(self.written.values())


class RateWindow:
    """Keeps the last samples. Rates cover the last `window_seconds`."""

    def __init__(self, window_seconds: float = 0.0) -> None:
        self.last: ClusterSample | None = None
        self.rates: Rates | None = None
        """None until there are two samples."""
        self._window_seconds = window_seconds
        self._samples: deque[ClusterSample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: ClusterSample) -> None:
        while len(self._samples) > 1 and sample.at_seconds - self._samples[1].at_seconds >= self._window_seconds:
            self._samples.popleft()
        if self._samples:
            self.rates = _rates(self._samples[0], sample)
        self._samples.append(sample)
        self.last = sample


def _rates(before: ClusterSample, now: ClusterSample) -> Rates:
    seconds = max(now.at_seconds - before.at_seconds, 0.001)
    positions, positions_before = _positions(now), _positions(before)
    lags_before = {each.group.id: each.lag for each in before.health.groups}
    return Rates(
        # A recreated topic starts at 0 again, which is not a write.
        written={
            name: max(0, each.end - before.topics[name].end) / seconds
            for name, each in now.topics.items()
            if name in before.topics
        },
        # Offsets that went back were reset, which is not reading.
        read={
            group: max(0, position - positions_before[group]) / seconds
            for group, position in positions.items()
            if group in positions_before
        },
        lag_growth={
            each.group.id: (each.lag - lags_before[each.group.id]) / seconds
            for each in now.health.groups
            if each.group.id in lags_before
        },
    )


def _positions(sample: ClusterSample) -> dict[str, int]:
    return {each.group.id: sum(part.committed or 0 for part in each.partitions) for each in sample.health.groups}
