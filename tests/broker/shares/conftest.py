"""A window that begins empty, and windows as a new leader loads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from millpond.broker.shares.window import ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shares.state_batches import StateBatch
from support.share_stage import NAMES, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage(ShareWindow(ShareSettings(lock_duration_ms=30_000, delivery_count_limit=5, in_flight_max=50), 0))


@pytest.fixture
def load_stage() -> Callable[[int, Sequence[tuple[int, int, str, int]]], Stage]:
    states = {name: state for state, name in NAMES.items()}

    def load(start: int, batches: Sequence[tuple[int, int, str, int]]) -> Stage:
        found = [StateBatch(first, last, states[name], count) for first, last, name, count in batches]
        return Stage(ShareWindow.load(ShareSettings(30_000, 5, 50), start, found))

    return load
