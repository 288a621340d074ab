"""Who is let in, who has been silent too long, and the end of them all."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest

from millpond.base.later import Later
from millpond.broker.serving.connections import Connections
from millpond.broker.serving.request_memory import STUCK_BYTES, STUCK_MS, TURN_MS
from millpond.config.node import node_settings
from millpond.sim.world.clock import VirtualClock

IDLE_MS = 100_000
LENGTH = Struct(">i")


class Parking:
    """A dispatcher that answers nothing until it is told to."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.waits: list[Later[Any]] = []

    def handle(self, connection: Any, frame: memoryview) -> None:
        self.waits.append(Later())
        connection.reply_later(self.waits[-1], lambda frame: [frame])


class Play:
    def __init__(self, make_link: Callable[..., Any], texts: dict[str, str] | None = None) -> None:
        self.clock = VirtualClock()
        self.texts = {
            "max.connections": "4",
            "max.connections.per.ip": "2",
            "connections.max.idle.ms": str(IDLE_MS),
            **(texts or {}),
        }
        self.parking = Parking(self.clock)
        self.connections = Connections(
            self.parking,  # type: ignore[arg-type]
            self.clock,
            lambda: node_settings(self.texts),
        )
        self._make_link = make_link

    def connect(self, peer: str = "10.0.0.1:5000") -> Any:
        """The peer's link, or None when it is turned away."""
        link = self._make_link(peer)
        link.handler = self.connections.accept(link)
        return link if link.handler is not None else None

    def events_after(self, duration_ms: int, *links: Any) -> list[list[str]]:
        """Let time pass, sweep, and see what was done to whom."""
        self.clock.run_for(duration_ms)
        self.connections.drop_idle()
        return [link.events for link in links]


@pytest.fixture
def play(make_link: Callable[..., Any]) -> Play:
    return Play(make_link)


def test_one_host_takes_only_its_share(play: Play) -> None:
    first, second = play.connect("10.0.0.1:1"), play.connect("10.0.0.1:2")
    assert first
    assert second
    assert play.connect("10.0.0.1:3") is None
    assert play.connect("10.0.0.2:1")
    assert play.connections.turned_away_total == 1
    first.end()
    assert play.connect("10.0.0.1:4")


def test_hosts_that_have_left_are_forgotten(play: Play) -> None:
    for host in range(100):
        play.connect(f"10.0.0.{host}:1").end()
    assert not play.connections._per_host


def test_hosts_of_the_newer_protocol_are_told_apart(play: Play) -> None:
    assert all(play.connect(peer) for peer in ("::1:1", "::1:2", "::2:1"))
    assert play.connect("::1:3") is None


def test_there_is_an_end_to_connections(play: Play) -> None:
    links = [play.connect(f"10.0.0.{host}:1") for host in range(4)]
    assert all(links)
    assert play.connect("10.0.0.9:1") is None
    assert len(play.connections) == 4
    links[0].end()
    assert len(play.connections) == 3
    assert play.connect("10.0.0.9:1")


def test_limits_may_change_while_running(play: Play) -> None:
    play.texts["max.connections"] = "1"
    assert play.connect()
    assert play.connect() is None
    play.texts["max.connections"] = "2"
    assert play.connect()


def test_only_those_who_are_silent_too_long_are_dropped(play: Play) -> None:
    silent, busy = play.connect(), play.connect()
    assert play.events_after(IDLE_MS, silent, busy) == [[], []]
    busy.say(LENGTH.pack(0))
    assert play.events_after(1, silent, busy) == [["abort"], []]


def test_part_of_a_large_request_is_not_waited_for_as_long(play: Play) -> None:
    stuck, silent = play.connect(), play.connect()
    stuck.say(LENGTH.pack(1 << 20) + b"a")
    assert play.events_after(STUCK_MS, stuck, silent) == [[], []]
    assert play.events_after(1, stuck, silent) == [["abort"], []]


def test_a_large_request_must_come_at_some_pace(play: Play) -> None:
    """A byte every now and then holds memory for ever, and looked like progress once."""
    slow, fair = play.connect(), play.connect()
    for each in (slow, fair):
        each.say(LENGTH.pack(1 << 20))
    for _ in range(10):
        slow.say(b"a")
        fair.say(bytes(STUCK_BYTES // 8))
        assert play.events_after(STUCK_MS // 10, slow, fair) == [[], []]
    assert play.events_after(1, slow, fair) == [["abort"], []]


def test_who_keeps_others_waiting_for_memory_must_come_faster(make_link: Callable[..., Any]) -> None:
    play = Play(make_link, {"queued.max.request.bytes": str(64 << 10)})
    slow, other = play.connect(), play.connect()
    slow.say(LENGTH.pack(1 << 20) + bytes(1000))
    assert play.events_after(TURN_MS + 1, slow, other) == [[], []], "nobody waits"
    other.say(LENGTH.pack(1 << 20) + bytes(1000))
    slow.say(bytes(1000))
    assert play.events_after(TURN_MS + 1, slow, other) == [["abort"], ["pause"]]
    slow.end()
    assert play.events_after(0, other) == [["pause", "resume"]]


def test_who_had_to_wait_for_memory_is_given_time_to_go_on(make_link: Callable[..., Any]) -> None:
    play = Play(make_link, {"queued.max.request.bytes": str(64 << 10), "socket.request.max.bytes": str(64 << 10)})
    oldest, waiter = play.connect(), play.connect()
    for link in (oldest, waiter):
        link.say(LENGTH.pack(40 << 10) + b"a")
    assert waiter.events == ["pause"]
    for _ in range(3):
        oldest.say(b"a")
        assert play.events_after(STUCK_MS - 1, waiter) == [["pause"]]
    oldest.say(bytes((40 << 10) - 4))
    assert waiter.events == ["pause", "resume"]
    assert play.events_after(STUCK_MS, waiter) == [["pause", "resume"]]
    assert play.events_after(1, waiter) == [["pause", "resume", "abort"]]


def test_closing_takes_nobody_new_and_lets_the_answers_out(play: Play) -> None:
    owed, idle = play.connect(), play.connect("10.0.0.2:1")
    owed.say(LENGTH.pack(0))
    play.connections.begin_closing()
    assert play.connect("10.0.0.3:1") is None
    assert (owed.events, idle.events) == ([], ["close"])
    assert play.connections.count_waiting() == 1
    play.parking.waits[0].finish(b"")
    play.connections.begin_closing()
    assert owed.events == ["close"]
    assert play.connections.count_waiting() == 0


def test_in_the_end_all_are_dropped(play: Play) -> None:
    links = [play.connect(), play.connect()]
    links[0].say(LENGTH.pack(0))
    play.connections.drop_all()
    assert [link.events for link in links] == [["abort"], ["abort"]]
