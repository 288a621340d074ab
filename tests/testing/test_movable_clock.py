"""A test may move a broker's clock: locks expire and delayed jobs are due without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millpond import LockExpired, Queue
from millpond.testing import Pond
from millpond.testing.movable_clock import MovableClock
from support.share_settings import needs_delay


def on_loop(play: Callable[[MovableClock], Any]) -> None:
    async def main() -> None:
        await play(MovableClock(asyncio.get_running_loop(), 0))

    asyncio.run(main())


def test_timers_run_in_the_order_of_their_times_once_the_clock_is_there() -> None:
    async def play(clock: MovableClock) -> None:
        ran: list[str] = []
        clock.call_later(3_600_000, lambda: ran.append("hour"))
        clock.call_later(60_000, lambda: ran.append("minute"))
        cancelled = clock.call_later(1_000, lambda: ran.append("second"))
        cancelled.cancel()
        day = clock.call_later(86_400_000, lambda: ran.append("day"))
        clock.advance(59_000)
        await asyncio.sleep(0)
        assert ran == []
        clock.advance(3_541_000)
        await asyncio.sleep(0.01)
        assert ran == ["minute", "hour"]
        day.cancel()
        clock.advance(1 << 40)
        await asyncio.sleep(0.01)
        assert ran == ["minute", "hour"]

    on_loop(play)


def test_every_clock_moves_and_a_timer_needs_no_push() -> None:
    async def play(clock: MovableClock) -> None:
        before = clock.wall_ms(), clock.monotonic_ms(), clock.monotonic_us(), clock.boottime_ms()
        clock.advance(10_000)
        after = clock.wall_ms(), clock.monotonic_ms(), clock.monotonic_us(), clock.boottime_ms()
        moved = [late - early for early, late in zip(before, after, strict=True)]
        assert all(each >= 10_000 for each in moved)
        assert moved[2] >= 10_000_000
        ran = asyncio.Event()
        clock.call_later(1, ran.set)
        await asyncio.wait_for(ran.wait(), 60)

    on_loop(play)


@pytest.mark.millpond(mode="thread")
def test_a_lock_expires_when_the_clock_is_moved(millpond: Pond) -> None:
    topic = millpond.create_topic("jobs")
    with Queue(topic, "g", bootstrap=millpond.bootstrap) as queue:
        queue.send(b"a").result(30)
        (message,) = queue.receive(timeout=30)
        assert queue.receive(timeout=0.3) == []
        millpond.advance(31)
        (again,) = queue.receive(timeout=30)
        assert again.deliveries == 2
        with pytest.raises(LockExpired):
            message.ack()
        again.ack()


@pytest.mark.millpond(mode="thread")
def test_the_time_survives_a_restart_and_a_day_does_no_harm(millpond: Pond) -> None:
    topic = millpond.create_topic("jobs", message_timestamp_type="LogAppendTime")
    (first,) = millpond.produce(topic, b"a")
    millpond.advance(86_400)
    millpond.restart()
    (second,) = millpond.produce(topic, b"b")
    assert second.timestamp()[1] - first.timestamp()[1] >= 86_400_000
    assert [each.value for each in millpond.consume(topic, 2)] == [b"a", b"b"]


@needs_delay
@pytest.mark.millpond(mode="thread")
def test_a_job_for_tomorrow_is_there_tomorrow(millpond: Pond) -> None:
    topic = millpond.create_topic("jobs")
    with Queue(topic, "g", bootstrap=millpond.bootstrap) as queue:
        queue.send(b"later", delay=86_400).result(30)
        assert queue.receive(timeout=1) == []
        millpond.advance(86_400)
        assert [each.value for each in queue.receive(timeout=30)] == [b"later"]


@pytest.mark.millpond(mode="process")
def test_only_a_broker_in_this_process_has_such_a_clock(millpond: Pond) -> None:
    with pytest.raises(RuntimeError, match='mode="thread"'):
        millpond.advance(1)


def test_it_only_moves_forward(millpond: Pond) -> None:
    with pytest.raises(ValueError, match="forward"):
        millpond.advance(-1)
