"""How fast replicas that are not in sync may be copied: so a move of partitions leaves room for everybody else."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import Final

from millpond.config.topic import ALL_REPLICAS

LOOK_MS: Final = 1_000


class Throttle:
    """A number of bytes a second, all partitions together. What went beyond it is waited for afterwards."""

    def __init__(self, rate: Callable[[], int] | None = None) -> None:
        self._rate = rate
        self._beyond = 0.0
        """How many bytes were copied beyond what the rate allows, at the time of the last look."""
        self._looked_ms = 0

    def held_ms(self, now_ms: int) -> int:
        """How long to wait before more may be copied, or before it is looked at again: the rate may change."""
        if self._rate is None:
            return 0
        rate = self._rate()
        self._beyond = max(self._beyond - (now_ms - self._looked_ms) * rate / 1000, 0.0)
        self._looked_ms = now_ms
        return min(ceil(self._beyond * 1000 / rate), LOOK_MS)

    def count(self, size: int, now_ms: int) -> None:
        """So many bytes were copied."""
        self.held_ms(now_ms)
        self._beyond += size


def is_named(entries: tuple[str, ...], index: int, node_id: int) -> bool:
    """Whether a list of replicas, as Kafka's tools write it, has that of this partition on this node."""
    return bool(entries) and (ALL_REPLICAS in entries or f"{index}:{node_id}" in _as_set(entries))


@lru_cache(maxsize=64)
def _as_set(entries: tuple[str, ...]) -> frozenset[str]:
    """Every partition of a topic looks into the same list."""
    return frozenset(entries)
