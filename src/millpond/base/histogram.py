"""A latency histogram whose buckets double: cheap enough to be updated for every request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

CLASSES: Final = 27
"""Up to 67 seconds in powers of two from one microsecond on; the last bucket has everything longer."""

SHOWN_FROM: Final = 6
"""Durations below 64 microseconds are reported as one bucket."""


class Histogram:
    """Durations in microseconds. Only `observe` is called often."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (CLASSES + 1)
        """By the number of binary digits: each bucket ends at a power of two."""
        self.sum_us = 0

    def observe(self, duration_us: int) -> None:
        """Count a duration, which must not be negative."""
        digits = duration_us.bit_length()
        self.counts[digits if digits < CLASSES else CLASSES] += 1
        self.sum_us += duration_us

    def observe_with(self, other: Histogram, duration_us: int) -> None:
        """Count a duration in both histograms."""
        digits = duration_us.bit_length()
        if digits > CLASSES:
            digits = CLASSES
        self.counts[digits] += 1
        self.sum_us += duration_us
        other.counts[digits] += 1
        other.sum_us += duration_us

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Bounds in seconds with the number of durations up to each; without the last bucket, which has no bound."""
        so_far = sum(self.counts[:SHOWN_FROM])
        for digits in range(SHOWN_FROM, CLASSES):
            so_far += self.counts[digits]
            yield (1 << digits) / 1e6, so_far
