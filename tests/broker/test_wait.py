"""A parked reply: ended once, by whoever comes first."""

from __future__ import annotations

import pytest

from millpond.broker.wait import Wait
from millpond.sim.world.clock import VirtualClock


def test_a_reply_reaches_its_reader_whether_it_comes_before_or_after_him() -> None:
    heard: list[str] = []
    early: Wait[str] = Wait()
    early.finish("early")
    early.then(heard.append)
    late: Wait[str] = Wait()
    late.then(heard.append)
    assert heard == ["early"]
    late.finish("late")
    assert heard == ["early", "late"]


def test_only_the_first_answer_counts() -> None:
    heard: list[str] = []
    wait: Wait[str] = Wait()
    wait.finish("first")
    wait.finish("second")
    wait.then(heard.append)
    wait.finish("third")
    assert heard == ["first"]


def test_on_end_comes_once_and_before_the_reply() -> None:
    heard: list[str] = []
    wait: Wait[str] = Wait(on_end=lambda: heard.append("end"))
    wait.then(heard.append)
    wait.finish("reply")
    wait.cancel()
    assert heard == ["end", "reply"]


def test_what_is_cancelled_is_not_delivered() -> None:
    heard: list[str] = []
    wait: Wait[str] = Wait(on_end=lambda: heard.append("end"))
    wait.then(heard.append)
    wait.cancel()
    wait.finish("too late")
    assert heard == ["end"]
    assert wait.ended


def test_the_deadline_comes_unless_the_wait_has_ended() -> None:
    clock = VirtualClock()
    heard: list[str] = []
    waits: dict[str, Wait[str]] = {name: Wait() for name in ("kept", "finished", "cancelled")}
    for name, wait in waits.items():
        wait.expire_after(clock, 100, lambda name=name: heard.append(name))  # type: ignore[misc]
    waits["finished"].finish("reply")
    waits["cancelled"].cancel()
    clock.run_for(99)
    assert heard == []
    clock.run_for(1)
    assert heard == ["kept"]
    assert clock.pending() == 0


def test_a_wait_that_has_ended_sets_no_deadline() -> None:
    clock = VirtualClock()
    wait: Wait[str] = Wait()
    wait.finish("reply")
    wait.expire_after(clock, 100, lambda: pytest.fail("ended long ago"))
    assert clock.pending() == 0


def test_a_wait_has_one_reader() -> None:
    wait: Wait[str] = Wait()
    wait.then(lambda _: None)
    with pytest.raises(AssertionError, match="one reader"):
        wait.then(lambda _: None)
