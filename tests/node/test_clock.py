from __future__ import annotations

import asyncio
import time

from millpond.node.clock import LoopClock


def test_it_tells_the_time(loop: asyncio.AbstractEventLoop) -> None:
    clock = LoopClock(loop)
    assert int(time.time() * 1000) <= clock.wall_ms() <= time.time() * 1000
    began = time.monotonic()
    before = clock.monotonic_ms()
    time.sleep(0.01)
    passed_ms = clock.monotonic_ms() - before
    assert 10 <= passed_ms <= (time.monotonic() - began) * 1000 + 1


def test_it_runs_things_in_order_and_not_at_once(loop: asyncio.AbstractEventLoop) -> None:
    clock = LoopClock(loop)
    replies: list[str] = []
    clock.call_later(30, loop.stop)
    clock.call_later(20, lambda: replies.append("later"))
    clock.call_later(10, lambda: replies.append("sooner"))
    clock.call_later(5, lambda: replies.append("cancelled")).cancel()
    clock.call_soon(lambda: replies.append("soon"))
    assert replies == []
    start = clock.monotonic_ms()
    loop.run_forever()
    assert replies == ["soon", "sooner", "later"]
    assert clock.monotonic_ms() - start >= 25
