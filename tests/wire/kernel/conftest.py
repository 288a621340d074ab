"""Each test of a room runs twice: with the plain twin and with the compiled one."""

from __future__ import annotations

from typing import Any

import pytest

from support.twins import NOT_BUILT


@pytest.fixture(scope="module", params=["plain", "fast"])
def kernel(request: pytest.FixtureRequest) -> Any:
    """What the test's own file calls `plain` and `fast`."""
    room = getattr(request.module, request.param)
    if room is None:
        pytest.skip(NOT_BUILT)
    return room
