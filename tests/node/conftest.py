"""Both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import uvloop


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made = uvloop.new_event_loop() if request.param == "uvloop" else asyncio.SelectorEventLoop()
    yield made
    made.run_until_complete(asyncio.sleep(0))
    made.close()
