"""Share coordinators on a stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.share_coordinator import Coordinator


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def make_coordinator() -> Callable[..., Coordinator]:
    return Coordinator
