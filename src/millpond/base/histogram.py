"""How long things take, counted in classes that double: cheap enough to be on the way of every request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

CLASSES: Final = 27
"""Up to 67 seconds by twos from one microsecond on; what takes longer is in the last class."""

SHOWN_FROM: Final = 6
"""What takes less than 64 microseconds is told as one class."""


class Histogram:
    """Durations in microseconds. `observe` is the only thing that is done often."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (CLASSES + 1)
        """By the number of binary digits: each class ends where the next power of two begins."""
        self.sum_us = 0

    def observe(self, duration_us: int) -> None:
        """A clock that does not fall gives no negative ones."""
        digits = duration_us.bit_length()
        self.counts[digits if digits < CLASSES else CLASSES] += 1
        self.sum_us += duration_us

    def observe_with(self, other: Histogram, duration_us: int) -> None:
        """The same for both of them."""
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
        """Seconds, and how many took no longer; without the last class, which has no end."""
        so_far = sum(self.counts[:SHOWN_FROM])
        for digits in range(SHOWN_FROM, CLASSES):
            so_far += self.counts[digits]
            yield (1 << digits) / 1e6, so_far
