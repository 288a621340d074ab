"""So much a second, and no more than so much at once: what goes beyond is owed, and waited for afterwards."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import ceil
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LOOK_MS: Final = 1_000
"""So often it is looked for buckets to forget: whoever comes under a new name each time must not make it a habit."""

WAIT_MS_MAX: Final = (1 << 31) - 1
"""The longest that the protocol can tell."""


RATE_MIN: Final = 1e-6
RATE_MAX: Final = 1e18
"""Less or more than that a second is as good as nothing, or as all: numbers beyond cannot be reckoned with."""


def kept_rate(rate: float) -> float:
    return min(max(rate, RATE_MIN), RATE_MAX)


class Bucket:
    """What is left for somebody; below zero it is owed. Full at first."""

    __slots__ = ("_at_ms", "_left", "capacity", "rate")

    def __init__(self, rate: float, seconds: float, now_ms: int) -> None:
        self.rate = kept_rate(rate)
        """So much a second comes in."""
        self.capacity = self.rate * seconds
        """So much is in it at most."""
        self._left = self.capacity
        self._at_ms = now_ms

    def change(self, rate: float, seconds: float, now_ms: int) -> None:
        """Another rate from now on. What is left or owed stays as many seconds' worth as it was; what is owed stays
        as much as it was where that is sooner given back."""
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
        """How long until nothing is owed."""
        left = self.left(now_ms)
        return 0 if left >= 0 else min(ceil(-left * 1000 / self.rate), WAIT_MS_MAX)

    def is_full(self, now_ms: int) -> bool:
        """Whether it is as one that nobody has taken from: it may be forgotten."""
        return self.left(now_ms) >= self.capacity


class Buckets(Generic[K]):
    """Buckets by whom they belong to, made when they are asked for.

    There are only so many at once, because who asks chooses the names. One that is full may be forgotten; where none
    is, all who come later share one.
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
        """That of `key`; of the whole `crowd` where there are too many."""
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
