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


class ScriptedDispatcher:
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
            case "failed":
                ended = Later()
                ended.fail(RemoteError(name))
                connection.reply(ended, self.encode)
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


class ScriptedConnection:
    def __init__(self, make_link: Callable[..., Any], make_file: Callable[..., Any]) -> None:
        self.script = ScriptedDispatcher(make_file)
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
def client(make_link: Callable[..., Any], make_file: Callable[..., Any]) -> ScriptedConnection:
    return ScriptedConnection(make_link, make_file)


# The order of replies.


def test_replies_that_one_event_lets_go_leave_in_one_send(client: ScriptedConnection) -> None:
    client.say("later a", "later b", "later c")
    client.script.finish("a")
    client.script.finish("b")
    assert client.link.sends == 0, "a reply is still pending"
    client.turn()
    assert (client.heard(), client.link.sends) == (["a", "b"], 1)
    client.script.finish("c")
    assert (client.heard(), client.link.sends) == (["c"], 2), "with no reply pending, it leaves at once"
    client.say("later d", "later e")
    client.script.finish("d")
    client.connection.drop()
    client.turn()
    assert client.heard() == []


def test_replies_of_one_wake_up_leave_in_one_send(client: ScriptedConnection) -> None:
    client.say("now a", "never b", "frame c", "ended d")
    assert client.heard() == ["a", "c", "d"]
    assert client.link.sends == 1


def test_replies_wait_for_those_before_them(client: ScriptedConnection) -> None:
    client.say("later a", "now b")
    client.say("frame c")
    assert client.heard() == []
    client.script.finish("a")
    assert client.heard() == ["a", "b", "c"]
    client.say("now d")
    assert client.heard() == ["d"]


def test_pending_replies_that_come_in_the_wrong_order_leave_in_the_right_one(client: ScriptedConnection) -> None:
    client.say("later a", "frame-later b", "later c")
    client.script.finish("c")
    client.script.finish_frame("b")
    assert client.heard() == []
    client.script.finish("a")
    assert client.heard() == ["a", "b", "c"]


def test_an_ended_wait_still_stands_behind_those_before_it(client: ScriptedConnection) -> None:
    client.say("later a", "ended b")
    assert client.heard() == []
    client.script.finish("a")
    assert client.heard() == ["a", "b"]


def test_a_frame_that_is_there_already_leaves_at_once(client: ScriptedConnection) -> None:
    wait: Later[bytes] = Later()
    wait.finish(frame("a"))
    client.connection.reply_later(wait, lambda frame: [frame])
    assert client.heard() == ["a"]


def test_a_request_may_answer_an_earlier_one(client: ScriptedConnection) -> None:
    client.say("later a", "wake a", "now c")
    assert client.heard() == ["a", "awake", "c"]
    assert client.link.sends == 1


# Turns.


def test_many_requests_in_one_read_take_turns_with_other_connections(client: ScriptedConnection) -> None:
    requests = [f"slow {number}" for number in range(50)]
    client.say(*requests)
    assert client.script.handled == requests[:FEW_REQUESTS], "its turn is over"
    other, _ = client.connect()
    other.say(frame("now x"))
    assert [bytes(each) for each in other.frames()] == [b"x"], "a connection with few requests does not wait"
    turns = 1
    while client.link.events[-1] == "pause":
        client.script.clock.step()
        turns += 1
    assert client.script.handled == [*requests[:FEW_REQUESTS], "now x", *requests[FEW_REQUESTS:]]
    assert client.heard() == [str(number) for number in range(50)], "in order, each once"
    assert turns == -(-50 // FEW_REQUESTS)
    assert client.link.events == ["pause", "resume"]


def test_those_who_ask_much_share_a_round(client: ScriptedConnection) -> None:
    """Three waiting connections get one turn each before any of them gets a second."""
    turns = Turns(client.script.clock)
    order: list[str] = []

    def waits(name: str, times: int) -> Callable[[], None]:
        def go_on() -> None:
            order.append(name)
            if times > order.count(name):
                turns.wait(go_on)

        return go_on

    for name in "abc":
        turns.wait(waits(name, 2))
    client.script.clock.step()
    assert order == ["a", "b", "c"], "in one turn of the loop, and not more"
    client.script.clock.step()
    assert order == ["a", "b", "c", "a", "b", "c"]
    assert not client.script.clock.step()


def test_a_round_ends_when_its_time_is_over(client: ScriptedConnection) -> None:
    turns = Turns(client.script.clock)
    order: list[str] = []

    def waits(name: str) -> Callable[[], None]:
        def go_on() -> None:
            order.append(name)
            client.script.clock.now_ms += 2

        return go_on

    for name in "abc":
        turns.wait(waits(name))
    client.script.clock.step()
    assert order == ["a", "b"]
    client.script.clock.step()
    assert order == ["a", "b", "c"]


def test_a_resting_connection_can_be_closed(client: ScriptedConnection) -> None:
    client.say(*["slow a"] * 100)
    handled = len(client.script.handled)
    client.link.end()
    client.turn()
    assert len(client.script.handled) == handled < 100
    assert client.gone == [client.connection]


# Back-pressure.


def test_requests_that_wait_for_the_node_share_the_memory_of_those_that_arrive(client: ScriptedConnection) -> None:
    large = "x" * 500_000
    client.say(f"hold {large}", "now b")
    second, _ = client.connect("10.0.0.2:5000")
    second.say(frame(f"hold {large}y"))
    assert client.memory.held_bytes > 1_000_000
    third, late = client.connect()
    third.say(frame(f"now {large}")[:100_000])
    assert client.memory.is_stalled(late)
    for name in (large, large + "y"):
        client.script.finish(name)
    assert not client.memory.is_short
    assert [len(each) for each in client.heard()] == [500_000, 1]
    assert [len(each) for each in second.frames()] == [500_001]
    third.say(frame(f"now {large}")[100_000:])
    assert [len(each) for each in third.frames()] == [500_000]
    assert client.memory.held_bytes == 0
    client.say(f"hold {large}z")
    client.link.end()
    assert client.memory.held_bytes == 0


def test_too_many_in_flight_are_not_read_until_one_is_answered(client: ScriptedConnection) -> None:
    client.say("later a", "later b", "later c", "now d", "now e")
    assert client.link.events == ["pause"]
    assert client.script.handled == ["later a", "later b", "later c"]
    client.script.finish("a")
    client.turn()
    assert client.script.handled[3:] == ["now d"], "d took the place of a, so that e must wait"
    assert client.link.events == ["pause"]
    assert client.heard() == ["a"]
    client.script.finish("b")
    client.script.finish("c")
    assert client.heard() == ["b", "c", "d", "e"]
    assert client.link.events == ["pause", "resume"]


def test_the_backlog_outlives_the_shared_scratch(client: ScriptedConnection) -> None:
    client.say("later a", "later b", "later c", "now kept")
    other, _ = client.connect()
    other.say(frame("now" + " x" * 500))
    for name in "abc":
        client.script.finish(name)
    assert client.heard() == ["a", "b", "c", "kept"]


def test_a_peer_that_does_not_read_is_not_read_from(client: ScriptedConnection) -> None:
    client.link.stuck = True
    client.say("now " + "a" * UNSENT_BYTES_MAX)
    assert client.link.events == ["pause"]
    client.say("now b")
    assert client.script.handled[-1].startswith("now a"), "what was under way already waits its turn"
    client.link.read_all()
    assert client.link.events == ["pause", "resume"]
    assert client.heard()[-1] == "b"


def test_an_answer_does_not_resume_while_much_is_unsent(client: ScriptedConnection) -> None:
    client.link.stuck = True
    client.say("later " + "a" * UNSENT_BYTES_MAX, "later b", "later c")
    for name in list(client.script.waits):
        client.script.finish(name)
    assert client.link.events == ["pause"]
    client.link.read_all()
    assert client.link.events == ["pause", "resume"]


def test_a_stalled_connection_reads_on_when_there_is_room(client: ScriptedConnection) -> None:
    client.connection.set_stalled(True)
    client.say("now a")
    client.connection.drained()
    assert (client.heard(), client.link.events) == ([], ["pause"])
    client.connection.set_stalled(False)
    assert (client.heard(), client.link.events) == (["a"], ["pause", "resume"])


def test_a_stalled_connection_with_too_many_in_flight_stays_paused(client: ScriptedConnection) -> None:
    client.say("later a", "later b", "later c")
    client.connection.set_stalled(True)
    client.connection.set_stalled(False)
    assert client.link.events == ["pause"]
    client.script.finish("a")
    client.turn()
    assert client.link.events == ["pause", "resume"]


# Large requests.


def test_memory_of_unfinished_requests_is_counted_and_given_back(client: ScriptedConnection) -> None:
    large = frame("now " + "a" * 10_000)
    client.link.say(large[:5_000])
    assert client.memory.held_bytes == 10_004
    client.link.say(large[5_000:])
    assert client.memory.held_bytes == 0
    assert len(client.heard()[0]) == 10_000


def test_a_stalled_request_is_not_slow_and_its_time_begins_anew(client: ScriptedConnection) -> None:
    client.link.say(frame("now " + "a" * 10_000)[:5_000])
    client.connection.set_stalled(True)
    client.script.clock.run_for(60_000)
    assert not client.connection.is_too_slow(60_000, others_wait=True), "it is we who do not read"
    client.connection.set_stalled(False)
    assert client.connection.last_active_ms == 60_000
    assert not client.connection.is_too_slow(60_000 + TURN_MS, others_wait=True)
    assert client.connection.is_too_slow(60_000 + TURN_MS + 1, others_wait=True)


def test_a_connection_that_ends_gives_its_memory_back(client: ScriptedConnection) -> None:
    client.link.say(frame("now " + "a" * 10_000)[:5_000])
    client.link.end()
    assert client.memory.held_bytes == 0


# Protocol errors, and closing.


def test_a_fault_reaches_the_link_after_the_answers_before_it(client: ScriptedConnection) -> None:
    with pytest.raises(RemoteError, match="nonsense"):
        client.say("now a", "nonsense", "now b")
    assert client.heard() == ["a"]
    assert client.script.handled == ["now a", "nonsense"]


def test_a_fault_in_the_backlog_ends_this_connection_and_not_the_event_that_woke_it(
    client: ScriptedConnection,
) -> None:
    client.say("later a", "later b", "later c", "nonsense", "now d")
    for name in "abc":
        client.script.finish(name)
    assert client.link.events == ["pause", "abort"]
    assert client.script.handled[3:] == ["nonsense"]
    assert client.script.reported == ["nonsense"]
    assert client.gone == []
    client.link.end()
    assert client.gone == [client.connection]


def test_a_late_reply_that_cannot_be_written_ends_this_connection_and_not_the_event_that_made_it(
    client: ScriptedConnection,
) -> None:
    client.say("unwritable a", "later b")
    client.script.finish("a")
    client.script.finish("b")
    assert client.link.events == ["abort"]
    assert client.link.sends == 0
    assert client.script.reported == ["it does not fit"]


@pytest.mark.parametrize("before", [[], ["later a", "later b", "later c"]], ids=["read", "backlog"])
def test_no_request_is_handled_after_one_that_ended_the_connection(
    client: ScriptedConnection, before: list[str]
) -> None:
    client.say(*before, "failed d", "now e", "now f")
    for name in "abc" if before else "":
        client.script.finish(name)
    client.turn()
    assert client.script.handled == [*before, "failed d"]
    assert client.link.events[-1] == "abort"


def test_what_comes_too_early_is_handled_later_in_its_order(client: ScriptedConnection) -> None:
    client.say("now a", "hold b", "now c")
    client.say("now d")
    assert client.heard() == ["a"]
    assert client.link.events == ["pause"]
    client.script.finish("b")
    assert client.heard() == ["b", "c", "d"]
    assert client.link.events == ["pause", "resume"]


def test_what_comes_too_early_and_in_vain_ends_the_connection(client: ScriptedConnection) -> None:
    client.say("hold a", "now b")
    client.script.waits["a"].fail(RemoteError("nobody is there"))
    assert client.link.events == ["pause", "abort"]
    assert client.heard() == []
    assert client.script.reported == ["nobody is there"]


def test_closing_the_connection_cancels_pending_replies(client: ScriptedConnection) -> None:
    client.say("later a", "frame-later b", "now c")
    client.link.end()
    assert client.script.cancelled == ["a", "b"]
    assert client.gone == [client.connection]
    client.script.finish("a")
    assert client.link.sends == 0


def test_the_end_forgets_the_backlog(client: ScriptedConnection) -> None:
    client.say("later a", "later b", "later c", "now d")
    client.link.end()
    client.connection.set_stalled(False)
    assert client.script.handled == ["later a", "later b", "later c"]


def test_files_are_released_once_sent_and_once_only(client: ScriptedConnection) -> None:
    client.say("file")
    assert client.heard() == ["records"]
    assert client.script.file.holds == 0
    client.link.end()


def test_files_that_wait_behind_a_pending_reply_are_released_at_the_end(client: ScriptedConnection) -> None:
    client.say("later a", "file", "file")
    assert client.script.file.holds == 2
    client.link.end()
    assert client.script.file.holds == 0


def test_files_of_a_reply_that_comes_after_the_end_are_released(client: ScriptedConnection) -> None:
    wait: Later[Any] = Later()
    client.connection.reply(wait, client.script.encode)
    client.connection.drop()
    wait.finish("file")
    assert client.script.file.holds == 0
    assert client.link.sends == 0


def test_files_that_were_not_flushed_are_released_at_the_end(client: ScriptedConnection) -> None:
    client.connection.reply("file", client.script.encode)  # type: ignore[arg-type]
    assert client.script.file.holds == 1
    client.link.end()
    assert client.script.file.holds == 0


# Connection facts.


def test_a_connection_is_waiting_while_it_is_owed_anything(client: ScriptedConnection) -> None:
    waiting = client.connection.is_waiting
    assert not waiting()
    client.say("later a")
    assert waiting()
    client.link.stuck = True
    client.script.finish("a")
    assert waiting(), "the answer has not left"
    client.link.read_all()
    assert not waiting()
    client.connection.set_stalled(True)
    client.say("now b")
    assert waiting(), "b is in the backlog"


def test_both_ways_count_as_activity(client: ScriptedConnection) -> None:
    for way, moment in ((partial(client.say, "now a"), 10), (client.connection.drained, 20)):
        client.script.clock.run_for(10)
        way()
        assert client.connection.last_active_ms == moment
