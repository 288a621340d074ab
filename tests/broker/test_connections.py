"""Which connections are accepted, which are closed as idle, and how all of them are closed."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest

from millpond.base.errors import RemoteError
from millpond.base.later import Later
from millpond.base.settings import SettingError
from millpond.broker.connections.connections import Connections
from millpond.broker.requests.request_memory import STUCK_BYTES, STUCK_MS, TURN_MS
from millpond.broker.security.arrivals import Arrivals
from millpond.broker.security.met_limits import TELL_MS, MetLimits
from millpond.config.node import node_settings
from millpond.metadata.records import ClientQuotaRecord, QuotaPart
from millpond.sim.world.clock import VirtualClock

IDLE_MS = 100_000
LENGTH = Struct(">i")


class PendingDispatcher:
    """A dispatcher that answers only when the test says so."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.waits: list[Later[Any]] = []

    def load(self) -> None:
        """The node knows all that it needs."""

    def handle(self, connection: Any, frame: memoryview) -> None:
        self.waits.append(Later())
        connection.reply_later(self.waits[-1], lambda frame: [frame])


class AcceptingNode:
    def __init__(self, make_link: Callable[..., Any], texts: dict[str, str] | None = None) -> None:
        self.clock = VirtualClock()
        self.texts = {
            "max.connections": "4",
            "max.connections.per.ip": "2",
            "connections.max.idle.ms": str(IDLE_MS),
            **(texts or {}),
        }
        self.dispatcher = PendingDispatcher(self.clock)
        self.told: list[dict[str, object]] = []
        self.limits = MetLimits(self.clock, lambda _, **facts: self.told.append(facts))
        self.arrivals = Arrivals(self.clock, lambda: node_settings(self.texts), self.limits)
        self.connections = Connections(
            self.dispatcher,  # type: ignore[arg-type]
            self.clock,
            lambda: node_settings(self.texts),
            self.arrivals,
        )
        self._make_link = make_link

    def connect(self, peer: str = "10.0.0.1:5000", listener: str = "PLAINTEXT") -> Any:
        """The peer's link, or None if the connection is refused."""
        link = self._make_link(peer, listener=listener)
        link.handler = self.connections.accept(link)
        return link if link.handler is not None else None

    def events_after(self, duration_ms: int, *links: Any) -> list[list[str]]:
        """Advance time, sweep, and return what was done to each connection."""
        self.clock.run_for(duration_ms)
        self.connections.drop_idle()
        return [link.events for link in links]


@pytest.fixture
def acceptor(make_link: Callable[..., Any]) -> AcceptingNode:
    return AcceptingNode(make_link)


def test_one_host_takes_only_its_share(acceptor: AcceptingNode) -> None:
    first, second = acceptor.connect("10.0.0.1:1"), acceptor.connect("10.0.0.1:2")
    assert first
    assert second
    assert acceptor.connect("10.0.0.1:3") is None
    assert acceptor.connect("10.0.0.2:1")
    assert acceptor.connections.turned_away_total == 1
    first.end()
    assert acceptor.connect("10.0.0.1:4")


def test_hosts_that_have_left_are_forgotten(acceptor: AcceptingNode) -> None:
    for host in range(100):
        acceptor.connect(f"10.0.0.{host}:1").end()
    assert not acceptor.connections._per_host


def test_hosts_of_the_newer_protocol_are_told_apart(acceptor: AcceptingNode) -> None:
    assert all(acceptor.connect(peer) for peer in ("::1:1", "::1:2", "::2:1"))
    assert acceptor.connect("::1:3") is None


def test_there_is_an_end_to_connections(acceptor: AcceptingNode) -> None:
    links = [acceptor.connect(f"10.0.0.{host}:1") for host in range(4)]
    assert all(links)
    assert acceptor.connect("10.0.0.9:1") is None
    assert len(acceptor.connections) == 4
    links[0].end()
    assert len(acceptor.connections) == 3
    assert acceptor.connect("10.0.0.9:1")


def test_limits_may_change_while_running(acceptor: AcceptingNode) -> None:
    acceptor.texts["max.connections"] = "1"
    assert acceptor.connect()
    assert acceptor.connect() is None
    acceptor.texts["max.connections"] = "2"
    assert acceptor.connect()


def test_only_those_who_are_silent_too_long_are_dropped(acceptor: AcceptingNode) -> None:
    silent, busy = acceptor.connect(), acceptor.connect()
    assert acceptor.events_after(IDLE_MS, silent, busy) == [[], []]
    busy.say(LENGTH.pack(0))
    assert acceptor.events_after(1, silent, busy) == [["abort"], []]


def test_who_has_to_wait_for_his_quota_is_not_silent(acceptor: AcceptingNode) -> None:
    """Nothing is read from a throttled connection, so it cannot show activity. As in Kafka, one whose throttle time
    reaches the idle limit is closed: the node could not notice that the client has gone."""
    waiting, too_long = acceptor.connect(), acceptor.connect()
    acceptor.clock.run_for(IDLE_MS - 1_000)
    for link in (waiting, too_long):
        link.say(LENGTH.pack(0))
    waiting.handler.mute(IDLE_MS - 1_000)
    too_long.handler.mute(2 * IDLE_MS)
    assert acceptor.events_after(IDLE_MS, waiting, too_long) == [["pause", "resume"], ["pause"]]
    assert acceptor.events_after(1, waiting, too_long) == [["pause", "resume"], ["pause", "abort"]]
    assert acceptor.events_after(IDLE_MS - 1_001, waiting) == [["pause", "resume"]], "its idle time has started again"
    assert acceptor.events_after(1, waiting) == [["pause", "resume", "abort"]]


def test_part_of_a_large_request_is_not_waited_for_as_long(acceptor: AcceptingNode) -> None:
    stuck, silent = acceptor.connect(), acceptor.connect()
    stuck.say(LENGTH.pack(1 << 20) + b"a")
    assert acceptor.events_after(STUCK_MS, stuck, silent) == [[], []]
    assert acceptor.events_after(1, stuck, silent) == [["abort"], []]


def test_a_large_request_must_come_at_some_pace(acceptor: AcceptingNode) -> None:
    """A byte every now and then holds memory forever, and once counted as progress."""
    slow, fair = acceptor.connect(), acceptor.connect()
    for each in (slow, fair):
        each.say(LENGTH.pack(1 << 20))
    for _ in range(10):
        slow.say(b"a")
        fair.say(bytes(STUCK_BYTES // 8))
        assert acceptor.events_after(STUCK_MS // 10, slow, fair) == [[], []]
    assert acceptor.events_after(1, slow, fair) == [["abort"], []]


def test_who_keeps_others_waiting_for_memory_must_come_faster(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, {"queued.max.request.bytes": str(64 << 10)})
    slow, other = acceptor.connect(), acceptor.connect()
    slow.say(LENGTH.pack(1 << 20) + bytes(1000))
    assert acceptor.events_after(TURN_MS + 1, slow, other) == [[], []], "no connection waits"
    other.say(LENGTH.pack(1 << 20) + bytes(1000))
    slow.say(bytes(1000))
    assert acceptor.events_after(TURN_MS + 1, slow, other) == [["abort"], ["pause"]]
    assert acceptor.told == [{"limit": "queued.max.request.bytes=65536", "peer": "10.0.0.1:5000"}]
    slow.end()
    assert acceptor.events_after(0, other) == [["pause", "resume"]]


@pytest.mark.parametrize("is_muted", [True, False])
def test_a_connection_stalled_by_its_own_fault_makes_way_for_others(
    make_link: Callable[..., Any], is_muted: bool
) -> None:
    """It is over its quota or does not read its responses, so the rest of its request cannot arrive."""
    acceptor = AcceptingNode(make_link, {"queued.max.request.bytes": str(64 << 10)})
    holder, other = acceptor.connect(), acceptor.connect()
    holder.say(LENGTH.pack(4) + b"abcd" + LENGTH.pack(1 << 20) + bytes(1000))
    if is_muted:
        holder.handler.mute(10 * STUCK_MS)
    else:
        holder.stuck = True
        acceptor.dispatcher.waits[0].finish(bytes(8 << 20))
    assert acceptor.events_after(2 * STUCK_MS, holder, other) == [["pause"], []], "no connection waits"
    other.say(LENGTH.pack(1 << 20) + bytes(1000))
    assert acceptor.events_after(0, holder, other) == [["pause", "abort"], ["pause"]]


def test_who_had_to_wait_for_memory_is_given_time_to_go_on(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(
        make_link, {"queued.max.request.bytes": str(64 << 10), "socket.request.max.bytes": str(64 << 10)}
    )
    oldest, waiter = acceptor.connect(), acceptor.connect()
    for link in (oldest, waiter):
        link.say(LENGTH.pack(40 << 10) + b"a")
    assert waiter.events == ["pause"]
    for _ in range(3):
        oldest.say(b"a")
        assert acceptor.events_after(STUCK_MS - 1, waiter) == [["pause"]]
    oldest.say(bytes((40 << 10) - 4))
    assert waiter.events == ["pause", "resume"]
    assert acceptor.events_after(STUCK_MS, waiter) == [["pause", "resume"]]
    assert acceptor.events_after(1, waiter) == [["pause", "resume", "abort"]]


def test_the_reason_why_a_request_is_too_large_names_the_setting(acceptor: AcceptingNode) -> None:
    link = acceptor.connect()
    with pytest.raises(RemoteError, match=r"socket\.request\.max\.bytes"):
        link.say(LENGTH.pack(1 << 30))


def test_closing_accepts_no_connection_and_lets_responses_out(acceptor: AcceptingNode) -> None:
    owed, idle = acceptor.connect(), acceptor.connect("10.0.0.2:1")
    owed.say(LENGTH.pack(0))
    acceptor.connections.begin_closing()
    assert acceptor.connect("10.0.0.3:1") is None
    assert (owed.events, idle.events) == ([], ["close"])
    assert acceptor.connections.count_waiting() == 1
    acceptor.dispatcher.waits[0].finish(b"")
    acceptor.connections.begin_closing()
    assert owed.events == ["close"]
    assert acceptor.connections.count_waiting() == 0


def test_in_the_end_all_are_dropped(acceptor: AcceptingNode) -> None:
    links = [acceptor.connect(), acceptor.connect()]
    links[0].say(LENGTH.pack(0))
    acceptor.connections.drop_all()
    assert [link.events for link in links] == [["abort"], ["abort"]]


# Connection counts and rates.

MANY = {"max.connections": "1000", "max.connections.per.ip": "1000", "quota.window.num": "2"}


def come(acceptor: AcceptingNode, count: int, host: str = "10.0.0.1") -> int:
    """How many of this many connections are accepted; all are closed again."""
    links = [acceptor.connect(f"{host}:{port}") for port in range(count)]
    for link in links:
        if link is not None:
            link.end()
    return sum(link is not None for link in links)


def test_an_address_that_comes_too_fast_is_refused_until_it_comes_more_slowly(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, {**MANY, "max.connection.creation.rate.per.ip": "10"})
    assert come(acceptor, 100) == 10
    assert come(acceptor, 10, "10.0.0.2") == 10, "others are not held up by it"
    acceptor.clock.run_for(500)
    assert come(acceptor, 100) == 5
    acceptor.clock.run_for(60_000)
    assert come(acceptor, 100) == 10, "nothing more is saved up"
    assert acceptor.told[0] == {"address": "10.0.0.1", "limit": "max.connection.creation.rate.per.ip=10"}


def test_a_refused_address_that_reconnects_at_once_gets_its_share(
    make_link: Callable[..., Any],
) -> None:
    acceptor = AcceptingNode(make_link, {**MANY, "max.connection.creation.rate.per.ip": "10"})
    come(acceptor, 100)
    admitted = 0
    for _ in range(100):
        acceptor.clock.run_for(100)
        admitted += come(acceptor, 20)
    assert 95 <= admitted <= 101


def test_the_quota_of_an_address_counts_before_that_of_all_and_both_before_the_setting(
    make_link: Callable[..., Any],
) -> None:
    acceptor = AcceptingNode(make_link, {**MANY, "max.connection.creation.rate.per.ip": "50"})
    acceptor.arrivals.replay(ClientQuotaRecord((QuotaPart("ip", "10.0.0.1"),), "connection_creation_rate", 3.0))
    assert (come(acceptor, 100), come(acceptor, 100, "10.0.0.2")) == (3, 50)
    acceptor.arrivals.replay(ClientQuotaRecord((QuotaPart("ip", None),), "connection_creation_rate", 7.0))
    acceptor.arrivals.replay(ClientQuotaRecord((QuotaPart("ip", "2001:DB8::0:7"),), "connection_creation_rate", 2.0))
    acceptor.clock.run_for(10_000)
    assert (come(acceptor, 100), come(acceptor, 100, "10.0.0.2"), come(acceptor, 100, "2001:db8::7")) == (3, 7, 2)
    assert acceptor.told[-1]["limit"] == "connection_creation_rate=3", "each limit is reported once"
    for address in ("10.0.0.1", None):
        acceptor.arrivals.replay(
            ClientQuotaRecord((QuotaPart("ip", address),), "connection_creation_rate", remove=True)
        )
    acceptor.clock.run_for(10_000)
    assert come(acceptor, 100) == 50


def test_all_together_may_come_only_so_fast(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, {**MANY, "max.connection.creation.rate": "20"})
    assert come(acceptor, 15) == 15
    assert come(acceptor, 15, "10.0.0.2") == 5
    assert acceptor.told == [{"address": "10.0.0.2", "limit": "max.connection.creation.rate=20"}]


def test_single_addresses_may_have_other_numbers(make_link: Callable[..., Any]) -> None:
    texts = {"max.connections": "20", "max.connections.per.ip.overrides": "10.0.0.1:1,10.0.0.3:3"}
    acceptor = AcceptingNode(make_link, texts)
    counts = [
        sum(acceptor.connect(f"{host}:{port}") is not None for port in range(5)) for host in ("10.0.0.1", "10.0.0.2")
    ]
    assert counts == [1, 2]
    assert sum(acceptor.connect(f"10.0.0.3:{port}") is not None for port in range(5)) == 3
    assert {each["limit"] for each in acceptor.told} == {
        "max.connections.per.ip.overrides=1",
        "max.connections.per.ip=2",
    }, "each name is reported once per interval"


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:x", "example.com:5", ":5"])
def test_what_is_no_address_with_a_number_is_no_setting(text: str) -> None:
    with pytest.raises(SettingError):
        node_settings({"max.connections.per.ip.overrides": text})


def test_one_address_never_takes_the_last_tenth(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, {"max.connections": "20", "max.connections.per.ip": "1000"})
    links = [acceptor.connect(f"10.0.0.1:{port}") for port in range(20)]
    assert sum(link is not None for link in links) == 18
    assert acceptor.connect("10.0.0.2:1")
    assert acceptor.told[0]["limit"] == "max.connections.per.ip=18"


def test_a_limit_is_told_every_now_and_then_and_counted_each_time(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, {**MANY, "max.connection.creation.rate.per.ip": "1"})
    come(acceptor, 100)
    acceptor.clock.run_for(TELL_MS - 1)
    come(acceptor, 100)
    assert len(acceptor.told) == 1
    acceptor.clock.run_for(1)
    come(acceptor, 100)
    assert len(acceptor.told) == 2
    assert acceptor.limits.counts["max.connection.creation.rate.per.ip"] == 298


# Limits by listener.

SEVERAL = {
    "listeners": "NODES://127.0.0.1:1,PUBLIC://127.0.0.1:2",
    "listener.security.protocol.map": "NODES:PLAINTEXT,PUBLIC:PLAINTEXT",
    "inter.broker.listener.name": "NODES",
    "max.connections": "3",
    "max.connections.per.ip": "1000",
}


def test_clients_do_not_lock_nodes_out(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, SEVERAL)
    clients = []
    for host in range(3):
        clients.append(acceptor.connect(f"10.0.1.{host}:1", "PUBLIC"))
        acceptor.clock.run_for(10)
    clients[0].say(LENGTH.pack(0))
    assert acceptor.connect("10.0.1.9:1", "PUBLIC") is None
    assert acceptor.connect("10.0.0.1:1", "NODES")
    assert [each.events for each in clients] == [[], ["abort"], []], "the connection idle for longest is evicted"
    assert acceptor.connect("10.0.0.2:1", "NODES")
    assert [each.events for each in clients] == [[], ["abort"], ["abort"]]
    for each in clients[1:]:
        each.end()
    assert acceptor.connect("10.0.1.9:1", "PUBLIC") is None
    assert acceptor.connect("10.0.0.3:1", "NODES")
    clients[0].end()
    assert acceptor.connect("10.0.0.4:1", "NODES") is None, "no connection is left to evict"
    assert len(acceptor.connections) == 3
    assert {each["limit"] for each in acceptor.told} == {"max.connections=3"}


def test_with_a_single_listener_no_connection_is_evicted(acceptor: AcceptingNode) -> None:
    links = [acceptor.connect(f"10.0.0.{host}:1") for host in range(4)]
    assert acceptor.connect("10.0.0.9:1") is None
    assert [link.events for link in links] == [[]] * 4


def test_a_listener_has_its_own_number_of_connections(make_link: Callable[..., Any]) -> None:
    texts = {"max.connections": "100", "listener.name.public.max.connections": "2"}
    acceptor = AcceptingNode(make_link, {**SEVERAL, **texts})
    links = [acceptor.connect(f"10.0.1.{host}:1", "PUBLIC") for host in range(3)]
    assert [link is not None for link in links] == [True, True, False]
    assert acceptor.told == [{"address": "10.0.1.2", "limit": "listener.name.public.max.connections=2"}]
    assert acceptor.connect("10.0.1.2:1", "NODES")
    links[0].end()
    assert acceptor.connect("10.0.1.2:2", "PUBLIC")


def test_a_listener_has_its_own_rate(make_link: Callable[..., Any]) -> None:
    texts = {
        **MANY,
        "max.connection.creation.rate": "7",
        "listener.name.public.max.connection.creation.rate": "5",
    }
    acceptor = AcceptingNode(make_link, {**SEVERAL, **texts})

    def come_by(listener: str, count: int) -> int:
        links = [acceptor.connect(f"10.0.0.{port}:1", listener) for port in range(count)]
        return sum(link is not None for link in links)

    assert come_by("NODES", 20) == 20, "nodes are not counted with all others"
    assert come_by("PUBLIC", 20) == 5
    assert acceptor.told == [{"address": "10.0.0.5", "limit": "listener.name.public.max.connection.creation.rate=5"}]


def test_a_listener_has_no_other_limits_of_its_own() -> None:
    with pytest.raises(SettingError, match=r"max\.connections"):
        node_settings({"listener.name.plaintext.max.connections.per.ip": "5"})


# Data that is not read.


def test_those_whose_answers_hold_most_of_the_memory_are_closed(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, {"queued.max.response.bytes": str(1 << 20), "max.connections.per.ip": "4"})
    links = [acceptor.connect(f"10.0.0.1:{port}") for port in range(3)]
    for link, size in zip(links, (100_000, 600_000, 500_000), strict=True):
        link.stuck = True
        link.say(LENGTH.pack(4) + b"abcd")
        acceptor.dispatcher.waits[-1].finish(b"x" * size)
    assert acceptor.events_after(1000, *links) == [[], ["abort"], []]
    assert acceptor.told[0] == {
        "limit": "queued.max.response.bytes=1048576",
        "peer": "10.0.0.1:1",
        "unread_bytes": 600_000,
    }


def test_answers_that_wait_for_an_earlier_one_count_too(make_link: Callable[..., Any]) -> None:
    acceptor = AcceptingNode(make_link, {"queued.max.response.bytes": str(1 << 20)})
    link = acceptor.connect()
    for _ in range(12):
        link.say(LENGTH.pack(4) + b"abcd")
    for wait in acceptor.dispatcher.waits[1:11]:
        wait.finish(b"x" * 100_000)
    assert acceptor.events_after(1000, link) == [[]]
    acceptor.dispatcher.waits[11].finish(b"x" * 100_000)
    assert acceptor.events_after(1000, link) == [["abort"]]


def test_records_on_their_way_from_the_disk_are_no_memory(
    make_link: Callable[..., Any], make_file: Callable[..., Any]
) -> None:
    acceptor = AcceptingNode(make_link, {"queued.max.response.bytes": str(1 << 20)})
    link = acceptor.connect()
    link.stuck = True
    link.say(LENGTH.pack(4) + b"abcd")
    acceptor.dispatcher.waits[0].finish(make_file(b"x" * (2 << 20)).range())
    assert acceptor.events_after(1000, link) == [["pause"]] or link.events == []
    assert acceptor.told == []
