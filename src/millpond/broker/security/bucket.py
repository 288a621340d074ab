"""Token buckets: a rate per second with a maximum burst. Usage beyond that becomes a debt to wait off afterwards."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import ceil
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LOOK_MS: Final = 1_000
"""The least time between two searches for buckets to evict, so that a client with ever new names cannot make every
request search."""

WAIT_MS_MAX: Final = (1 << 31) - 1
"""The longest throttle time that the protocol can carry."""


RATE_MIN: Final = 1e-6
RATE_MAX: Final = 1e18
"""Rates beyond these bounds are as good as zero or unlimited, and would break the arithmetic."""


def kept_rate(rate: float) -> float:
    return min(max(rate, RATE_MIN), RATE_MAX)


class Bucket:
    """What is left of a quota; negative when in debt. Full at first."""

    __slots__ = ("_at_ms", "_left", "capacity", "rate")

    def __init__(self, rate: float, seconds: float, now_ms: int) -> None:
        self.rate = kept_rate(rate)
        """Refill per second."""
        self.capacity = self.rate * seconds
        """The most it can hold."""
        self._left = self.capacity
        self._at_ms = now_ms

    def change(self, rate: float, seconds: float, now_ms: int) -> None:
        """Change the rate. The balance keeps its worth in seconds; a debt keeps its amount instead where that is
        paid off sooner."""
        left = self.left(now_ms)
        left_seconds = left / self.rate
        self.rate = kept_rate(rate)
        self.capacity = self.rate * seconds
        self._left = min(left_seconds * self.rate, self.capacity)
        if left < 0:
            self._left = max(self._left, left)

    def left(self, now_ms: int) -> float:
        if now_ms > self._at_ms:
            self._left = min(self._left + (now_ms - self._at_ms) * self.rate / 1000, self.capacity)
            self._at_ms = now_ms
        return self._left

    def take(self, amount: float, now_ms: int) -> None:
        self._left = self.left(now_ms) - amount

    def wait_ms(self, now_ms: int) -> int:
        """The time until the debt is paid off."""
        left = self.left(now_ms)
        return 0 if left >= 0 else min(ceil(-left * 1000 / self.rate), WAIT_MS_MAX)

    def is_full(self, now_ms: int) -> bool:
        """Whether it is no different from a new bucket, and so can be evicted."""
        return self.left(now_ms) >= self.capacity


class Buckets(Generic[K]):
    """Buckets by key, created on first use.

    Their number is limited, because clients choose the keys. Full buckets can be evicted; when there are none, new
    keys share one bucket per crowd.
    """

    def __init__(self, count_max: int, on_forgotten: Callable[[], None] = lambda: None) -> None:
        self._count_max = count_max
        self._on_forgotten = on_forgotten
        self._buckets: dict[K, Bucket] = {}
        self._crowds: dict[Hashable, Bucket] = {}
        self._looked_ms: int | None = None

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, key: K, crowd: Hashable, rate: float, seconds: float, now_ms: int) -> Bucket:
        """The bucket of `key`, or the shared one of its `crowd` when there are too many."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._count_max:
                self._forget_full(now_ms)
            is_full = len(self._buckets) >= self._count_max
            bucket = self._crowds.get(crowd) if is_full else None
            if bucket is None:
                bucket = Bucket(rate, seconds, now_ms)
                if is_full:
                    self._crowds[crowd] = bucket
                else:
                    self._buckets[key] = bucket
        if bucket.rate != kept_rate(rate):
            bucket.change(rate, seconds, now_ms)
        return bucket

    def _forget_full(self, now_ms: int) -> None:
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        full = [key for key, bucket in self._buckets.items() if bucket.is_full(now_ms)]
        for key in full:
            del self._buckets[key]
        if full:
            self._on_forgotten()
