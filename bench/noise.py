"""What a difference between two figures means: how much worse one is, and whether that exceeds the noise.

A figure is a median. Its spread, half of the range of its slices as a share of the median, is stored under the name
of the figure and `_spread`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum

Measured = dict[str, float]

SPREAD = "_spread"
SPREAD_OF_ONE = 0.1
"""The assumed spread of a single slice."""

MORE_IS_BETTER = frozenset({"messages_per_s", "mb_per_s", "requests_per_s", "transactions_per_s", "seeds_per_hour"})
BY_CPU = frozenset({"cpu_s_per_gb", "cpu_s_per_million", "us_per_request", "ready_cpu_ms", "seeds_per_hour"})
"""CPU times, which depend on the processor's speed and not on waits."""

MEMORY = frozenset({"resident_mb", "kib_each"})
"""Figures that do not depend on the machine's speed."""

NOISE_LEAST: Mapping[str, float] = {
    "messages_per_s": 0.10,
    "mb_per_s": 0.10,
    "requests_per_s": 0.10,
    "transactions_per_s": 0.10,
    "seeds_per_hour": 0.10,
    "cpu_s_per_gb": 0.10,
    "cpu_s_per_million": 0.10,
    "us_per_request": 0.10,
    "p50_ms": 0.20,
    "p99_ms": 0.60,
    "ready_ms": 0.15,
    "resident_mb": 0.10,
    "kib_each": 0.10,
}
"""The compared figures, and the least noise between two runs of the same program."""

LOOP, COPY, SYNC = "loop", "copy", "sync"
LIMITS: Mapping[str, tuple[str, str]] = {
    LOOP: ("loop_requests_per_s", "loop_p50_ms"),
    COPY: ("copy_mb_per_s", "copy_mb_per_s"),
    SYNC: ("sync_p50_ms", "sync_p50_ms"),
}
"""For each limit of a machine, the figure that scales rates, and the one that scales waits."""

LOOP_CPU = "loop_us_per_request"


class Verdict(StrEnum):
    BETTER = "better"
    EVEN = "even"
    WORSE = "worse"
    UNCLEAR = "unclear"
    """The machine has changed too much for a verdict."""


def spread_of(values: Sequence[float]) -> float:
    """Half of the range as a share of the median; 0 if the median is 0."""
    if len(values) == 1:
        return SPREAD_OF_ONE
    middle = statistics.median(values)
    return (max(values) - min(values)) / 2 / abs(middle) if middle else 0.0


def medians_of(slices: Sequence[Mapping[str, float]]) -> Measured:
    """Each figure's own median, so that one disturbed slice does not spoil the row, and its spread."""
    found: Measured = {}
    for name in slices[0]:
        values = [each[name] for each in slices]
        found[name] = statistics.median(values)
        found[name + SPREAD] = spread_of(values)
    return found


def times_worse(name: str, ours: float, other: float) -> float:
    """How many times worse ours is: 1 is equal, 2 half as good, 0.5 twice as good."""
    if ours <= 0 or other <= 0:
        # Nothing was counted, so there is no ratio.
        return 1.0
    return other / ours if name in MORE_IS_BETTER else ours / other


def noise_of(name: str, *figures: Mapping[str, float]) -> float:
    """The difference that still counts as equal: the sum of both spreads, and at least the usual noise."""
    return max(NOISE_LEAST.get(name, 0.10), sum(each.get(name + SPREAD, 0.0) for each in figures))


def verdict_of(worse: float, noise: float) -> Verdict:
    if worse > 1 + noise:
        return Verdict.WORSE
    return Verdict.BETTER if 1 / worse > 1 + noise else Verdict.EVEN


def limit_of(name: str, bound: str) -> str | None:
    """The limit of the machine that a figure scales with, if any."""
    if name in MEMORY:
        return None
    if name in BY_CPU:
        return LOOP_CPU
    rate, wait = LIMITS[bound]
    return rate if name in MORE_IS_BETTER else wait


def pace_of(limit: str, then: Mapping[str, float], now: Mapping[str, float]) -> float:
    """The machine's speed relative to the earlier run: 0.5 is half as fast."""
    if then.get(limit, 0) <= 0 or now.get(limit, 0) <= 0:
        return 1.0
    return now[limit] / then[limit] if limit.endswith("_per_s") else then[limit] / now[limit]


def share_of_limit(bound: str, figures: Mapping[str, float], floor: Mapping[str, float]) -> float | None:
    """The share of the machine's limit that was reached; None if that was not measured."""
    if bound == SYNC:
        waited, least = figures.get("p50_ms"), floor.get("sync_p50_ms")
        return least / waited if waited and least else None
    name = "mb_per_s" if bound == COPY else "requests_per_s"
    reached, most = figures.get(name), floor.get(f"{bound}_{name}")
    return reached / most if reached and most else None
