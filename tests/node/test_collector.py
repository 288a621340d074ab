"""Collections of garbage that take long are not repeated."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from millpond.node.collector import LONG_MS, Collector


class Hands:
    """A clock that moves on each time it is looked at."""

    def __init__(self) -> None:
        self.step_ms = 0
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


@pytest.fixture
def clock() -> Iterator[Hands]:
    thresholds = gc.get_threshold()
    clock = Hands()
    collector = Collector(clock)  # type: ignore[arg-type]
    collector.calm()
    yield clock
    collector.stop()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_a_short_collection_changes_nothing(clock: Hands) -> None:
    frozen = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() <= frozen


def test_what_a_long_one_has_walked_in_vain_is_not_walked_again(clock: Hands) -> None:
    kept = [[each] for each in range(1000)]
    clock.step_ms = LONG_MS
    frozen = gc.get_freeze_count()
    gc.collect(1)
    assert gc.get_freeze_count() <= frozen, "only the oldest are many"
    gc.collect()
    assert gc.get_freeze_count() >= frozen + len(kept)
    assert not gc.get_objects(2)
