"""Requests in, replies out in request order; and what happens to a client that sends too much."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any

import pytest

from millpond.base.errors import RemoteError
from millpond.base.later import Later
from millpond.broker.loop.turns import Turns
from millpond.broker.requests.connection import FEW_REQUESTS, Connection
from millpond.broker.requests.request_memory import TURN_MS, RequestMemory
from millpond.sim.world.clock import VirtualClock
from millpond.wire.frames import FrameReader, SpareRoom

LENGTH = Struct(">i")
IN_FLIGHT_MAX = 3
UNSENT_BYTES_MAX = 100


def frame(text: str) -> bytes:
    return LENGTH.pack(len(text)) + text.encode()


class Script:
    """A dispatcher scripted by the requests: `now a` is answered with a, `later a` when the test says so."""

    def __init__(self, make_file: Callable[..., Any]) -> None:
        self.clock = VirtualClock()
        self.handled: list[str] = []
        self.waits: dict[str, Later[Any]] = {}
        self.cancelled: list[str] = []
        self.reported: list[str] = []
        self.file = make_file(b"records")

    def report(self, connection: Connection, error: RemoteError) -> None:
        self.reported.append(str(error))

    def handle(self, connection: Connection, request: memoryview) -> None:
        text = bytes(request).decode()
        self.handled.append(text)
        way, _, name = text.partition(" ")
        match way:
            case "now":
                connection.reply(name, self.encode)  # type: ignore[arg-type]
            case "ended":
                ended: Later[Any] = Later()
                ended.finish(name)
                connection.reply(ended, self.encode)
            case "later":
                connection.reply(self._wait(name), self.encode)
            case "never":
                connection.reply(None, self.encode)
            case "frame":
                connection.reply_frame(frame(name))
            case "frame-later":
                connection.reply_later(self._wait(name), lambda frame: [frame])
            case "unwritable":
                connection.reply(self._wait(name), self.encode_nothing)
            case "hold" if name not in self.waits:
                connection.hold(request, self._wait(name))
            case "hold":
                connection.reply(name, self.encode)  # type: ignore[arg-type]
            case "wake":
                self.waits[name].finish(name)
                connection.reply("awake", self.encode)  # type: ignore[arg-type]
            case "slow":
                self.clock.now_ms += 5
                connection.reply(name, self.encode)  # type: ignore[arg-type]
            case "file":
                connection.reply("file", self.encode)  # type: ignore[arg-type]
            case _:
                raise RemoteError(text)

    def encode(self, response: Any) -> list[Any]:
        if response == "file":
            return [LENGTH.pack(len(self.file.data)), self.file.range()]
        return [frame(response)]

    def encode_nothing(self, response: Any) -> list[Any]:
        raise RemoteError("it does not fit")

    def _wait(self, name: str) -> Later[Any]:
        wait = self.waits[name] = Later(on_end=lambda: self.cancelled.append(name))
        return wait

    def finish(self, name: str) -> None:
        self.waits[name].finish(name)

    def finish_frame(self, name: str) -> None:
        self.waits[name].finish(frame(name))


class Play:
    def __init__(self, make_link: Callable[..., Any], make_file: Callable[..., Any]) -> None:
        self.script = Script(make_file)
        self.scratch = memoryview(bytearray(4096))
        self.memory = RequestMemory(1 << 20)
        self.gone: list[Connection] = []
        self.make_link = make_link
        self.link, self.connection = self.connect()

    def connect(self, peer: str = "10.0.0.1:5000") -> tuple[Any, Connection]:
        link = self.make_link(peer)
        link.handler = Connection(
            link,
            self.script,  # type: ignore[arg-type]
            FrameReader(self.scratch, 1 << 20, SpareRoom(1 << 20)),
            self.memory,
            in_flight_max=IN_FLIGHT_MAX,
            unsent_bytes_max=UNSENT_BYTES_MAX,
            on_closed=self.gone.append,
        )
        return link, link.handler

    def say(self, *requests: str) -> None:
        """All of them arrive in one chunk."""
        self.link.say(b"".join(map(frame, requests)))

    def turn(self) -> None:
        """Run the next turn of the loop."""
        self.script.clock.run_for(0)

    def heard(self) -> list[str]:
        return [reply.decode() for reply in self.link.frames()]


@pytest.fixture
def play(make_link: Callable[..., Any], make_file: Callable[..., Any]) -> Play:
    return Play(make_link, make_file)


# The order of replies.


def test_replies_that_one_event_lets_go_leave_in_one_send(play: Play) -> None:
    play.say("later a", "later b", "later c")
    play.script.finish("a")
    play.script.finish("b")
    assert play.link.sends == 0, "somebody still waits"
    play.turn()
    assert (play.heard(), play.link.sends) == (["a", "b"], 1)
    play.script.finish("c")
    assert (play.heard(), play.link.sends) == (["c"], 2), "nobody waits: at once"
    play.say("later d", "later e")
    play.script.finish("d")
    play.connection.drop()
    play.turn()
    assert play.heard() == []


def test_replies_of_one_wake_up_leave_in_one_send(play: Play) -> None:
    play.say("now a", "never b", "frame c", "ended d")
    assert play.heard() == ["a", "c", "d"]
    assert play.link.sends == 1


def test_replies_wait_for_those_before_them(play: Play) -> None:
    play.say("later a", "now b")
    play.say("frame c")
    assert play.heard() == []
    play.script.finish("a")
    assert play.heard() == ["a", "b", "c"]
    play.say("now d")
    assert play.heard() == ["d"]


def test_pending_replies_that_come_in_the_wrong_order_leave_in_the_right_one(play: Play) -> None:
    play.say("later a", "frame-later b", "later c")
    play.script.finish("c")
    play.script.finish_frame("b")
    assert play.heard() == []
    play.script.finish("a")
    assert play.heard() == ["a", "b", "c"]


def test_an_ended_wait_still_stands_behind_those_before_it(play: Play) -> None:
    play.say("later a", "ended b")
    assert play.heard() == []
    play.script.finish("a")
    assert play.heard() == ["a", "b"]


def test_a_frame_that_is_there_already_leaves_at_once(play: Play) -> None:
    wait: Later[bytes] = Later()
    wait.finish(frame("a"))
    play.connection.reply_later(wait, lambda frame: [frame])
    assert play.heard() == ["a"]


def test_a_request_may_answer_an_earlier_one(play: Play) -> None:
    play.say("later a", "wake a", "now c")
    assert play.heard() == ["a", "awake", "c"]
    assert play.link.sends == 1


# Turns.


def test_many_requests_in_one_read_take_turns_with_other_connections(play: Play) -> None:
    requests = [f"slow {number}" for number in range(50)]
    play.say(*requests)
    assert play.script.handled == requests[:FEW_REQUESTS], "its turn is over"
    other, _ = play.connect()
    other.say(frame("now x"))
    assert [bytes(each) for each in other.frames()] == [b"x"], "whoever asks little does not wait"
    turns = 1
    while play.link.events[-1] == "pause":
        play.script.clock.step()
        turns += 1
    assert play.script.handled == [*requests[:FEW_REQUESTS], "now x", *requests[FEW_REQUESTS:]]
    assert play.heard() == [str(number) for number in range(50)], "in order, each once"
    assert turns == -(-50 // FEW_REQUESTS)
    assert play.link.events == ["pause", "resume"]


def test_those_who_ask_much_share_a_round(play: Play) -> None:
    """Three waiting connections get one turn each before any of them gets a second."""
    turns = Turns(play.script.clock)
    order: list[str] = []

    def waits(name: str, times: int) -> Callable[[], None]:
        def go_on() -> None:
            order.append(name)
            if times > order.count(name):
                turns.wait(go_on)

        return go_on

    for name in "abc":
        turns.wait(waits(name, 2))
    play.script.clock.step()
    assert order == ["a", "b", "c"], "in one turn of the loop, and not more"
    play.script.clock.step()
    assert order == ["a", "b", "c", "a", "b", "c"]
    assert not play.script.clock.step()


def test_a_round_ends_when_its_time_is_over(play: Play) -> None:
    turns = Turns(play.script.clock)
    order: list[str] = []

    def waits(name: str) -> Callable[[], None]:
        def go_on() -> None:
            order.append(name)
            play.script.clock.now_ms += 2

        return go_on

    for name in "abc":
        turns.wait(waits(name))
    play.script.clock.step()
    assert order == ["a", "b"]
    play.script.clock.step()
    assert order == ["a", "b", "c"]


def test_whoever_rests_can_still_go_away(play: Play) -> None:
    play.say(*["slow a"] * 100)
    handled = len(play.script.handled)
    play.link.end()
    play.turn()
    assert len(play.script.handled) == handled < 100
    assert play.gone == [play.connection]


# Back-pressure.


def test_requests_that_wait_for_the_node_share_the_memory_of_those_that_arrive(play: Play) -> None:
    large = "x" * 500_000
    play.say(f"hold {large}", "now b")
    second, _ = play.connect("10.0.0.2:5000")
    second.say(frame(f"hold {large}y"))
    assert play.memory.held_bytes > 1_000_000
    third, late = play.connect()
    third.say(frame(f"now {large}")[:100_000])
    assert play.memory.is_stalled(late)
    for name in (large, large + "y"):
        play.script.finish(name)
    assert not play.memory.is_short
    assert [len(each) for each in play.heard()] == [500_000, 1]
    assert [len(each) for each in second.frames()] == [500_001]
    third.say(frame(f"now {large}")[100_000:])
    assert [len(each) for each in third.frames()] == [500_000]
    assert play.memory.held_bytes == 0
    play.say(f"hold {large}z")
    play.link.end()
    assert play.memory.held_bytes == 0


def test_too_many_in_flight_are_not_read_until_one_is_answered(play: Play) -> None:
    play.say("later a", "later b", "later c", "now d", "now e")
    assert play.link.events == ["pause"]
    assert play.script.handled == ["later a", "later b", "later c"]
    play.script.finish("a")
    play.turn()
    assert play.script.handled[3:] == ["now d"], "d took the place of a, so that e must wait"
    assert play.link.events == ["pause"]
    assert play.heard() == ["a"]
    play.script.finish("b")
    play.script.finish("c")
    assert play.heard() == ["b", "c", "d", "e"]
    assert play.link.events == ["pause", "resume"]


def test_the_backlog_outlives_the_shared_scratch(play: Play) -> None:
    play.say("later a", "later b", "later c", "now kept")
    other, _ = play.connect()
    other.say(frame("now" + " x" * 500))
    for name in "abc":
        play.script.finish(name)
    assert play.heard() == ["a", "b", "c", "kept"]


def test_a_peer_that_does_not_read_is_not_read_from(play: Play) -> None:
    play.link.stuck = True
    play.say("now " + "a" * UNSENT_BYTES_MAX)
    assert play.link.events == ["pause"]
    play.say("now b")
    assert play.script.handled[-1].startswith("now a"), "what was under way already waits its turn"
    play.link.read_all()
    assert play.link.events == ["pause", "resume"]
    assert play.heard()[-1] == "b"


def test_an_answer_does_not_resume_while_much_is_unsent(play: Play) -> None:
    play.link.stuck = True
    play.say("later " + "a" * UNSENT_BYTES_MAX, "later b", "later c")
    for name in list(play.script.waits):
        play.script.finish(name)
    assert play.link.events == ["pause"]
    play.link.read_all()
    assert play.link.events == ["pause", "resume"]


def test_a_stalled_connection_reads_on_when_there_is_room(play: Play) -> None:
    play.connection.set_stalled(True)
    play.say("now a")
    play.connection.drained()
    assert (play.heard(), play.link.events) == ([], ["pause"])
    play.connection.set_stalled(False)
    assert (play.heard(), play.link.events) == (["a"], ["pause", "resume"])


def test_a_stalled_connection_with_too_many_in_flight_stays_paused(play: Play) -> None:
    play.say("later a", "later b", "later c")
    play.connection.set_stalled(True)
    play.connection.set_stalled(False)
    assert play.link.events == ["pause"]
    play.script.finish("a")
    play.turn()
    assert play.link.events == ["pause", "resume"]


# Large requests.


def test_memory_of_unfinished_requests_is_counted_and_given_back(play: Play) -> None:
    large = frame("now " + "a" * 10_000)
    play.link.say(large[:5_000])
    assert play.memory.held_bytes == 10_004
    play.link.say(large[5_000:])
    assert play.memory.held_bytes == 0
    assert len(play.heard()[0]) == 10_000


def test_a_stalled_request_is_not_slow_and_its_time_begins_anew(play: Play) -> None:
    play.link.say(frame("now " + "a" * 10_000)[:5_000])
    play.connection.set_stalled(True)
    play.script.clock.run_for(60_000)
    assert not play.connection.is_too_slow(60_000, others_wait=True), "it is we who do not read"
    play.connection.set_stalled(False)
    assert play.connection.last_active_ms == 60_000
    assert not play.connection.is_too_slow(60_000 + TURN_MS, others_wait=True)
    assert play.connection.is_too_slow(60_000 + TURN_MS + 1, others_wait=True)


def test_a_connection_that_ends_gives_its_memory_back(play: Play) -> None:
    play.link.say(frame("now " + "a" * 10_000)[:5_000])
    play.link.end()
    assert play.memory.held_bytes == 0


# Protocol errors, and closing.


def test_a_fault_reaches_the_link_after_the_answers_before_it(play: Play) -> None:
    with pytest.raises(RemoteError, match="nonsense"):
        play.say("now a", "nonsense", "now b")
    assert play.heard() == ["a"]
    assert play.script.handled == ["now a", "nonsense"]


def test_a_fault_in_the_backlog_ends_this_connection_and_not_the_event_that_woke_it(play: Play) -> None:
    play.say("later a", "later b", "later c", "nonsense", "now d")
    for name in "abc":
        play.script.finish(name)
    assert play.link.events == ["pause", "abort"]
    assert play.script.handled[3:] == ["nonsense"]
    assert play.script.reported == ["nonsense"]
    assert play.gone == []
    play.link.end()
    assert play.gone == [play.connection]


def test_a_late_reply_that_cannot_be_written_ends_this_connection_and_not_the_event_that_made_it(play: Play) -> None:
    play.say("unwritable a", "later b")
    play.script.finish("a")
    play.script.finish("b")
    assert play.link.events == ["abort"]
    assert play.link.sends == 0
    assert play.script.reported == ["it does not fit"]


def test_what_comes_too_early_is_handled_later_in_its_order(play: Play) -> None:
    play.say("now a", "hold b", "now c")
    play.say("now d")
    assert play.heard() == ["a"]
    assert play.link.events == ["pause"]
    play.script.finish("b")
    assert play.heard() == ["b", "c", "d"]
    assert play.link.events == ["pause", "resume"]


def test_what_comes_too_early_and_in_vain_ends_the_connection(play: Play) -> None:
    play.say("hold a", "now b")
    play.script.waits["a"].fail(RemoteError("nobody is there"))
    assert play.link.events == ["pause", "abort"]
    assert play.heard() == []
    assert play.script.reported == ["nobody is there"]


def test_closing_the_connection_cancels_pending_replies(play: Play) -> None:
    play.say("later a", "frame-later b", "now c")
    play.link.end()
    assert play.script.cancelled == ["a", "b"]
    assert play.gone == [play.connection]
    play.script.finish("a")
    assert play.link.sends == 0


def test_the_end_forgets_the_backlog(play: Play) -> None:
    play.say("later a", "later b", "later c", "now d")
    play.link.end()
    play.connection.set_stalled(False)
    assert play.script.handled == ["later a", "later b", "later c"]


def test_files_are_released_once_sent_and_once_only(play: Play) -> None:
    play.say("file")
    assert play.heard() == ["records"]
    assert play.script.file.holds == 0
    play.link.end()


def test_files_that_wait_behind_a_pending_reply_are_released_at_the_end(play: Play) -> None:
    play.say("later a", "file", "file")
    assert play.script.file.holds == 2
    play.link.end()
    assert play.script.file.holds == 0


def test_files_of_a_reply_that_comes_after_the_end_are_released(play: Play) -> None:
    wait: Later[Any] = Later()
    play.connection.reply(wait, play.script.encode)
    play.connection.drop()
    wait.finish("file")
    assert play.script.file.holds == 0
    assert play.link.sends == 0


def test_files_that_were_not_flushed_are_released_at_the_end(play: Play) -> None:
    play.connection.reply("file", play.script.encode)  # type: ignore[arg-type]
    assert play.script.file.holds == 1
    play.link.end()
    assert play.script.file.holds == 0


# Connection facts.


def test_a_connection_is_waiting_while_it_is_owed_anything(play: Play) -> None:
    waiting = play.connection.is_waiting
    assert not waiting()
    play.say("later a")
    assert waiting()
    play.link.stuck = True
    play.script.finish("a")
    assert waiting(), "the answer has not left"
    play.link.read_all()
    assert not waiting()
    play.connection.set_stalled(True)
    play.say("now b")
    assert waiting(), "b stands in the backlog"


def test_both_ways_count_as_activity(play: Play) -> None:
    for way, moment in ((partial(play.say, "now a"), 10), (play.connection.drained, 20)):
        play.script.clock.run_for(10)
        way()
        assert play.connection.last_active_ms == moment
