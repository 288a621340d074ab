"""Throttled replication: limits the rate at which replicas that are not in sync are copied."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final

from millpond.base.named_tuple import NamedTuple
from millpond.config.topic import ALL_REPLICAS, FOLLOWER_THROTTLED_REPLICAS, LEADER_THROTTLED_REPLICAS

if TYPE_CHECKING:
    from millpond.base.settings import Settings

LOOK_MS: Final = 1_000


class Throttle:
    """A rate in bytes per second shared by all partitions. Bytes beyond it are made up for by waiting afterwards."""

    def __init__(self, rate: Callable[[], int] | None = None) -> None:
        self._rate = rate
        self._beyond = 0.0
        """Bytes copied beyond the rate, as of `_looked_ms`."""
        self._looked_ms = 0

    def held_ms(self, now_ms: int) -> int:
        """How long to wait before more may be copied, at most `LOOK_MS`: the rate may change."""
        if self._rate is None:
            return 0
        rate = self._rate()
        self._beyond = max(self._beyond - (now_ms - self._looked_ms) * rate / 1000, 0.0)
        self._looked_ms = now_ms
        return min(ceil(self._beyond * 1000 / rate), LOOK_MS)

    def count(self, size: int, now_ms: int) -> None:
        self.held_ms(now_ms)
        self._beyond += size


class ReplicaThrottle(NamedTuple):
    """Whether the topic's settings throttle one replica: what it sends as leader, what it fetches as follower."""

    as_leader: bool
    as_follower: bool


UNTHROTTLED: Final = ReplicaThrottle(False, False)


def throttle_of(settings: Settings, index: int, node_id: int) -> ReplicaThrottle:
    return ReplicaThrottle(
        is_named(settings[LEADER_THROTTLED_REPLICAS], index, node_id),
        is_named(settings[FOLLOWER_THROTTLED_REPLICAS], index, node_id),
    )


def is_named(entries: tuple[str, ...], index: int, node_id: int) -> bool:
    """Whether a replica list in the format of Kafka's tools names this partition on this node."""
    return bool(entries) and (ALL_REPLICAS in entries or f"{index}:{node_id}" in _as_set(entries))


@lru_cache(maxsize=64)
def _as_set(entries: tuple[str, ...]) -> frozenset[str]:
    """Cached, because all partitions of a topic check the same list."""
    return frozenset(entries)
