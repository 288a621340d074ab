"""Delayed records over the wire: by their headers, and by members that release them for later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.shares.test_share_fetch import ShareServer
from tests.broker.shares.test_window_descriptions import described
from tests.support.share_members import ACCEPT, RELEASE, acquired, results, values

from millpond.base.errors import ErrorCode
from millpond.broker.shares import lookout, record_facts
from millpond.broker.shares.due_timer import CHECK_MS
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire.records import Record, encode_batch

DAY_MS = 24 * 3_600_000
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class DelayServer(ShareServer):
    """Appends records that are due at some time from now on; None is at once."""

    def append_due(self, *delays_ms: int | None, codec: int = 0, padding: int = 0) -> None:
        now_ms = self.server.sim.clock.wall_ms()
        records = [
            Record(
                number,
                WALL_START_MS,
                None,
                b"%d" % number + b"x" * padding,
                () if delay_ms is None else (("queue.deliver-at", b"%d" % (now_ms + delay_ms)),),
            )
            for number, delay_ms in enumerate(delays_ms)
        ]
        self.append_records(*records, codec=codec)

    def append_records(self, *records: Record, codec: int = 0) -> None:
        batch = memoryview(bytearray(encode_batch(records, codec=codec)))
        self.server.broker.partitions.get("pond", 0).append(batch, zstd=True)

    def jump(self, ms: int) -> None:
        self.server.sim.clock.jump_wall(ms)

    @property
    def wall_ms(self) -> int:
        return int(self.server.sim.clock.wall_ms())

    def restart(self, how: str = "kill") -> None:
        getattr(self.server.node, how)()
        assert self.server.node.start()
        self.run(100)


@pytest.fixture
def pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> DelayServer:
    return DelayServer(make_server, make_batch)


# By header


@pytest.mark.parametrize("codec", CODECS)
def test_a_delayed_record_is_delivered_when_it_is_due_and_not_earlier(pond: DelayServer, codec: str) -> None:
    pond.append_due(5_000, None, 2 * DAY_MS, None, codec=CODECS[codec])
    member = pond.member("m")
    assert acquired(member.fetch(0)) == [(1, 1, 1), (3, 3, 1)]
    member.send_fetch(max_wait_ms=20_000)
    pond.run(4_990)
    assert member.caller.replies() == []
    pond.run(100)
    (response,) = member.caller.replies()
    assert (acquired(response), values(response)) == ([(0, 0, 1)], [b"0"])
    assert results(member.acknowledge((0, 0, ACCEPT), (1, 1, ACCEPT), (3, 3, ACCEPT))) == [0]
    pond.jump(2 * DAY_MS)
    assert acquired(member.fetch()) == [(2, 2, 1)]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_large_batches_are_looked_at_by_a_worker(
    pond: DelayServer, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    looks: list[int] = []
    real = record_facts.batch_facts

    def count(batch: bytes, *rest: Any) -> Any:
        looks.append(len(batch))
        return real(batch, *rest)

    monkeypatch.setattr(record_facts, "batch_facts", count)
    pond.append_due(*[5_000, None] * 400, codec=CODECS[codec], padding=100)
    pond.append_due(None)
    members = [pond.member(f"m{number}") for number in range(3)]
    for member in members:
        member.send_fetch(0, max_records=100, share_acquire_mode=1, max_wait_ms=2_000)
    pond.run(3_000)
    got = [each for member in members for each in acquired(member.caller.replies()[0])]
    assert sorted(first for first, _, _ in got) == list(range(1, 600, 2))
    assert all(first == last for first, last, _ in got)
    assert len(looks) == 1, "one of them looks, the others wait for it"
    pond.run(3_000)
    found = []
    while more := acquired(members[0].fetch(max_wait_ms=0)):
        found += more
    assert sum(last - first + 1 for first, last, _ in found) == 501


def test_batches_without_the_header_are_not_decoded(pond: DelayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a batch was decoded")

    monkeypatch.setattr(lookout, "batch_facts", fail)
    monkeypatch.setattr(record_facts, "batch_facts", fail)
    pond.append_due(*[None] * 100)
    assert acquired(pond.member("m").fetch(0)) == [(0, 99, 1)]


def test_a_compressed_batch_is_decompressed_once(pond: DelayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = record_facts.batch_facts

    def count(batch: bytes, *rest: Any) -> Any:
        looks.append(len(batch))
        return real(batch, *rest)

    monkeypatch.setattr(lookout, "batch_facts", count)
    for _ in range(3):
        pond.append_due(None, None, None, codec=4)
    member = pond.member("m")
    for first in range(9):
        assert acquired(member.fetch(0, max_records=1, share_acquire_mode=1)) == [(first, first, 1)]
    assert len(looks) == 3


def test_delayed_records_are_not_in_flight(pond: DelayServer) -> None:
    pond.configure_group(share_partition_max_record_locks="100")
    pond.append_due(*[10_000] * 500)
    pond.append_due(*[None] * 100)
    pond.append_due(None)
    member = pond.member("m")
    assert acquired(member.fetch(0)) == [(500, 599, 1)]
    window = described(pond)[0].window
    assert (window.delayed, window.acquired, window.available) == (500, 100, 0)
    assert pond.wall_ms < window.next_due_ms <= pond.wall_ms + 10_000
    assert acquired(member.fetch(max_wait_ms=100)) == [], "now it is full"
    member.acknowledge((500, 599, ACCEPT))
    pond.run(10_000)
    assert described(pond)[0].window.delayed == 0
    assert acquired(member.fetch(max_records=100, share_acquire_mode=1)) == [(0, 99, 1)]


def test_later_records_wait_while_too_many_are_delayed(pond: DelayServer) -> None:
    pond.configure_group(share_delay_max_records="2")
    pond.append_due(5_000, None, 5_000, None, 5_000, None)
    pond.append_due(None)
    member = pond.member("m")
    assert acquired(member.fetch(0)) == [(1, 1, 1), (3, 3, 1)]
    assert acquired(member.fetch(max_wait_ms=100)) == []
    assert described(pond)[0].window.delayed == 2
    pond.run(5_000)
    found = acquired(member.fetch()) + acquired(member.fetch(max_wait_ms=100))
    assert sorted(each for first, last, _ in found for each in range(first, last + 1)) == [0, 2, 4, 5, 6]


@pytest.mark.parametrize("value", [b"", b"soon", b"-5", b"1e9", b"9" * 40, b"0", None])
def test_a_time_that_cannot_be_read_is_ignored(pond: DelayServer, value: bytes | None) -> None:
    pond.append_records(Record(0, WALL_START_MS, None, b"v", (("queue.deliver-at", value),)))
    assert acquired(pond.member("m").fetch(0)) == [(0, 0, 1)]


def test_the_header_may_be_ignored(pond: DelayServer) -> None:
    pond.append_due(DAY_MS, DAY_MS)
    member = pond.member("m")
    assert acquired(member.fetch(0, max_wait_ms=100)) == []
    pond.configure_group(share_delay_enable="false")
    # Also by those that are delayed already.
    assert acquired(member.fetch(max_wait_ms=5_000)) == [(0, 1, 1)]
    pond.append_due(DAY_MS)
    assert acquired(member.fetch()) == [(2, 2, 1)]
    pond.configure_group(share_delay_enable="true")
    pond.append_due(DAY_MS)
    assert acquired(member.fetch(max_wait_ms=100)) == []


def test_a_new_leader_looks_at_the_headers_again(pond: DelayServer) -> None:
    pond.append_due(None, 60_000, None)
    member = pond.member("m")
    assert acquired(member.fetch(0)) == [(0, 0, 1), (2, 2, 1)]
    assert results(member.acknowledge((2, 2, ACCEPT))) == [0]
    pond.restart()
    again = pond.member("m")
    assert acquired(again.fetch(0)) == [(0, 0, 1)]
    assert results(again.acknowledge((0, 0, ACCEPT))) == [0]
    assert acquired(again.fetch(max_wait_ms=100)) == []
    pond.run(60_000)
    assert acquired(again.fetch()) == [(1, 1, 1)]


# The clock


def test_a_clock_that_jumps_forward_makes_records_due(pond: DelayServer) -> None:
    pond.append_due(3_600_000)
    member = pond.member("m")
    member.send_fetch(0, max_wait_ms=20_000)
    pond.run(1_000)
    pond.jump(3_600_000)
    pond.run(CHECK_MS + 100)
    (response,) = member.caller.replies()
    assert acquired(response) == [(0, 0, 1)]


def test_a_clock_that_goes_back_delays_for_longer(pond: DelayServer) -> None:
    pond.append_due(5_000)
    due_ms = pond.wall_ms + 5_000
    member = pond.member("m")
    member.send_fetch(0, max_wait_ms=20_000)
    pond.run(1_000)
    pond.jump(-10_000)
    pond.run(due_ms - pond.wall_ms - 10)
    assert member.caller.replies() == []
    pond.run(100)
    (response,) = member.caller.replies()
    assert acquired(response) == [(0, 0, 1)]


# By a member


def test_a_record_is_released_for_later(pond: DelayServer) -> None:
    pond.append_due(None, None)
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, RELEASE), delay_ms=30_000)) == [0]
    other.send_fetch(0, max_wait_ms=60_000)
    pond.run(29_950)
    assert other.caller.replies() == []
    pond.run(150)
    (response,) = other.caller.replies()
    # The lock on the other record has expired at about the same time.
    assert (0, 0, 2) in acquired(response) or (0, 1, 2) in acquired(response)


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_a_release_for_later_outlives_the_leader(pond: DelayServer, how: str) -> None:
    pond.append_due(None, None, None)
    member = pond.member("m")
    member.fetch(0)
    assert results(member.acknowledge((1, 1, RELEASE), delay_ms=2 * DAY_MS)) == [0]
    due_ms = pond.wall_ms + 2 * DAY_MS
    pond.restart(how)
    again = pond.member("m")
    assert acquired(again.fetch(0)) == [(0, 0, 1), (2, 2, 1)]
    assert results(again.acknowledge((0, 0, ACCEPT), (2, 2, ACCEPT))) == [0]
    window = described(pond)[0].window
    assert (window.delayed, window.available) == (1, 0)
    assert due_ms - 100 <= window.next_due_ms <= due_ms
    pond.jump(due_ms - pond.wall_ms - 200)
    assert acquired(again.fetch(max_wait_ms=0)) == []
    pond.run(2 * CHECK_MS)
    assert acquired(again.fetch()) == [(1, 1, 2)]


def test_a_release_for_later_that_comes_too_late_is_not_lost(pond: DelayServer) -> None:
    """The node was down when it fell due."""
    pond.append_due(None)
    member = pond.member("m")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, RELEASE), delay_ms=1_000)) == [0]
    pond.server.node.kill()
    pond.run(60_000)
    assert pond.server.node.start()
    pond.run(100)
    assert acquired(pond.member("m").fetch(0)) == [(0, 0, 2)]


def test_only_releases_are_delayed(pond: DelayServer) -> None:
    pond.append_due(None, None)
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE), delay_ms=1_000)) == [0]
    pond.run(1_100)
    assert acquired(other.fetch(0)) == [(1, 1, 2)]


@pytest.mark.parametrize("delay_ms", [-1, 1 << 62])
def test_a_delay_out_of_bounds_is_refused(pond: DelayServer, delay_ms: int) -> None:
    pond.append_due(None)
    member = pond.member("m")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, RELEASE), delay_ms=delay_ms)) == [ErrorCode.INVALID_REQUEST]
    assert results(member.acknowledge((0, 0, ACCEPT))) == [0]


def test_a_fetch_may_release_for_later(pond: DelayServer) -> None:
    pond.append_due(None)
    member = pond.member("m")
    member.fetch(0)
    request = member.fetch_request(acknowledgements=[(0, 0, RELEASE)], max_wait_ms=100)
    request.topics[0].partitions[0].acknowledgement_batches[0].delay_ms = 5_000
    assert acquired(member.caller.ask(request, 2, within_ms=1_000)) == []
    pond.run(5_000)
    assert acquired(member.fetch()) == [(0, 0, 2)]


def test_a_record_released_for_the_last_time_is_archived(pond: DelayServer) -> None:
    pond.configure_group(share_delivery_count_limit="2")
    pond.append_due(None)
    member = pond.member("m")
    for delivery in (1, 2):
        assert acquired(member.fetch(0)) == [(0, 0, delivery)]
        assert results(member.acknowledge((0, 0, RELEASE), delay_ms=500)) == [0]
        pond.run(600)
    assert acquired(member.fetch(max_wait_ms=100)) == []
