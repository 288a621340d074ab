"""Priorities and order per key, over the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.shares.test_share_fetch import ShareServer
from tests.support.share_members import ACCEPT, REJECT, RELEASE, acquired, results, values

from millpond.broker.shares.next_records import PASSED_OVER_MAX
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire.records import Record, encode_batch


class OrderServer(ShareServer):
    def append_keys(self, keys: str, codec: int = 0) -> None:
        """One batch, each record with the key of one letter; `.` is none."""
        self._append([Record(0, 0, None if key == "." else key.encode(), key.encode()) for key in keys], codec)

    def append_priorities(self, digits: str, codec: int = 0) -> None:
        """One batch, each record with the priority of one digit; `.` is none."""
        self._append(
            [
                Record(0, 0, b"k", digit.encode(), () if digit == "." else (("queue.priority", digit.encode()),))
                for digit in digits
            ],
            codec,
        )

    def _append(self, records: list[Record], codec: int) -> None:
        records = [each._replace(offset=number, timestamp=WALL_START_MS) for number, each in enumerate(records)]
        batch = memoryview(bytearray(encode_batch(records, codec=codec)))
        self.server.broker.partitions.get("pond", 0).append(batch, zstd=True)


@pytest.fixture
def pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> OrderServer:
    return OrderServer(make_server, make_batch)


def offsets(response: Any) -> list[int]:
    return [each for first, last, _ in acquired(response) for each in range(first, last + 1)]


# Priority


@pytest.mark.parametrize("codec", [0, 4])
def test_higher_priorities_are_delivered_first(pond: OrderServer, codec: int) -> None:
    pond.configure_group(share_priority_enable="true")
    pond.append_priorities("..9.", codec)
    pond.append_priorities("09.9", codec)
    member = pond.member("m")
    fetched = [offsets(member.fetch(0)) for _ in range(3)]
    assert fetched == [[2, 5, 7], [0, 1, 3, 6], [4]]


def test_a_record_that_comes_later_overtakes(pond: OrderServer) -> None:
    pond.configure_group(share_priority_enable="true")
    pond.append_priorities("....")
    member = pond.member("m")
    assert offsets(member.fetch(0, max_records=1, share_acquire_mode=1)) == [0]
    pond.append_priorities("05")
    assert offsets(member.fetch()) == [5]
    assert results(member.acknowledge((0, 0, RELEASE), (5, 5, RELEASE))) == [0]
    # What is tried again keeps its priority.
    assert [offsets(member.fetch()) for _ in range(3)] == [[5], [0, 1, 2, 3], [4]]


def test_without_the_setting_the_header_means_nothing(pond: OrderServer) -> None:
    pond.append_priorities("19")
    assert offsets(pond.member("m").fetch(0)) == [0, 1]


def test_a_low_priority_is_not_passed_over_forever(pond: OrderServer) -> None:
    pond.configure_group(share_priority_enable="true")
    pond.append_priorities("0")
    member = pond.member("m")
    passed = 0
    while True:
        pond.append_priorities("9")
        found = offsets(member.fetch(0))
        if found == [0]:
            break
        passed += 1
        assert results(member.acknowledge((found[0], found[0], ACCEPT))) == [0]
    assert passed == PASSED_OVER_MAX


def test_it_looks_only_so_far_ahead(pond: OrderServer) -> None:
    pond.configure_group(share_priority_enable="true", share_look_ahead_records="100")
    for _ in range(20):
        pond.append_priorities("." * 10)
    pond.append_priorities("9")
    member = pond.member("m")
    assert offsets(member.fetch(0, max_records=50, share_acquire_mode=1)) == list(range(50))
    leader = pond.server.broker.contexts.data.shares().group("g").leaders[pond.pond.topic_id, 0]
    assert leader.window.upcoming.looked == 100
    assert offsets(member.fetch(max_records=50, share_acquire_mode=1)) == list(range(50, 100))
    assert offsets(member.fetch()) == list(range(100, 200)), "nobody knew of the last one"


def test_priorities_are_respected_by_a_new_leader(pond: OrderServer) -> None:
    pond.configure_group(share_priority_enable="true")
    pond.append_priorities("12345")
    member = pond.member("m")
    assert offsets(member.fetch(0)) == [4]
    pond.server.node.kill()
    assert pond.server.node.start()
    pond.run(100)
    again = pond.member("m")
    assert [offsets(again.fetch(0)) for _ in range(5)] == [[4], [3], [2], [1], [0]]


# Order per key


@pytest.mark.parametrize("codec", [0, 3])
def test_records_of_a_key_come_one_after_the_other(pond: OrderServer, codec: int) -> None:
    pond.configure_group(share_key_order_enable="true")
    pond.append_keys("aab.a.", codec)
    pond.append_keys("b", codec)
    member, other = pond.member("m"), pond.member("n")
    assert offsets(member.fetch(0)) == [0, 2, 3, 5]
    assert offsets(other.fetch(0, max_wait_ms=100)) == []
    other.send_fetch(max_wait_ms=10_000)
    assert results(member.acknowledge((0, 0, ACCEPT))) == [0]
    pond.run(10)
    (response,) = other.caller.replies()
    assert (offsets(response), values(response)) == ([1], [b"a"])
    assert results(member.acknowledge((2, 2, REJECT))) == [0]
    assert offsets(member.fetch()) == [6], "a rejected record is finished"


def test_a_key_waits_for_a_record_that_is_tried_again(pond: OrderServer) -> None:
    pond.configure_group(share_key_order_enable="true")
    pond.append_keys("aab")
    member = pond.member("m")
    assert offsets(member.fetch(0)) == [0, 2]
    assert results(member.acknowledge((0, 0, RELEASE))) == [0]
    assert acquired(member.fetch()) == [(0, 0, 2)]
    assert results(member.acknowledge((0, 0, RELEASE), delay_ms=5_000)) == [0]
    assert offsets(member.fetch(max_wait_ms=4_000)) == []
    assert acquired(member.fetch(max_wait_ms=4_000)) == [(0, 0, 3)]
    pond.run(31_000)
    # Its lock has expired, and the one on `b`.
    assert acquired(member.fetch()) == [(0, 0, 4)]


def test_a_new_leader_keeps_the_order(pond: OrderServer) -> None:
    pond.configure_group(share_key_order_enable="true")
    pond.append_keys("abab")
    pond.append_keys("ab")
    member = pond.member("m")
    assert offsets(member.fetch(0)) == [0, 1]
    assert results(member.acknowledge((0, 0, RELEASE), delay_ms=60_000)) == [0]
    assert results(member.acknowledge((1, 1, ACCEPT))) == [0]
    assert offsets(member.fetch()) == [3]
    pond.server.node.kill()
    assert pond.server.node.start()
    pond.run(100)
    again = pond.member("m")
    # The first `a` is delayed, and was read by nobody of this leader's members.
    assert offsets(again.fetch(0)) == [3]
    assert results(again.acknowledge((3, 3, ACCEPT))) == [0]
    assert offsets(again.fetch()) == [5]
    assert offsets(again.fetch(max_wait_ms=100)) == []
    pond.run(60_000)
    assert acquired(again.fetch())[0] == (0, 0, 2)


def test_a_delayed_record_holds_up_its_key(pond: OrderServer) -> None:
    pond.configure_group(share_key_order_enable="true")
    at = (("queue.deliver-at", b"%d" % (pond.server.sim.clock.wall_ms() + 5_000)),)
    pond._append([Record(0, 0, b"a", b"1", at), Record(0, 0, b"a", b"2"), Record(0, 0, b"b", b"3")], 0)
    member = pond.member("m")
    assert values(member.fetch(0)) == [b"3"]
    assert values(member.fetch(max_wait_ms=10_000)) == [b"1"]
    assert results(member.acknowledge((0, 0, ACCEPT))) == [0]
    assert values(member.fetch()) == [b"2"]


def test_order_may_be_asked_for_later(pond: OrderServer) -> None:
    pond.append_keys("aaab")
    member, other = pond.member("m"), pond.member("n")
    assert offsets(member.fetch(0, max_records=2, share_acquire_mode=1)) == [0, 1]
    pond.configure_group(share_key_order_enable="true")
    assert offsets(other.fetch(0)) == [3]
    assert results(member.acknowledge((1, 1, ACCEPT))) == [0]
    assert offsets(other.fetch(max_wait_ms=100)) == [], "the first one is out"
    assert results(member.acknowledge((0, 0, ACCEPT))) == [0]
    assert offsets(other.fetch()) == [2]
    pond.configure_group(share_key_order_enable="false")
    pond.append_keys("cc")
    assert offsets(other.fetch()) == [4, 5]


def test_many_records_of_one_batch_are_learned_in_slices(pond: OrderServer) -> None:
    pond.configure_group(share_key_order_enable="true", share_partition_max_record_locks="10000")
    pond.append_keys("ab" * 3_000 + "c")
    member = pond.member("m")
    assert offsets(member.fetch(0)) == [0, 1, 6_000]
    assert results(member.acknowledge((0, 1, ACCEPT))) == [0]
    assert offsets(member.fetch()) == [2, 3]


def test_a_read_to_deliver_is_no_look_ahead(pond: OrderServer) -> None:
    """It reaches further than the leader has looked."""
    pond.configure_group(share_key_order_enable="true", share_look_ahead_records="100")
    for _ in range(30):
        pond.append_keys("abcdefghij")
    member = pond.member("m")
    assert offsets(member.fetch(0)) == list(range(10))
    assert offsets(member.fetch(max_wait_ms=100)) == []
    assert results(member.acknowledge((3, 3, ACCEPT))) == [0]
    assert offsets(member.fetch()) == [13]


def test_retention_lets_the_next_record_of_a_key_go(pond: OrderServer) -> None:
    pond.configure_group(share_key_order_enable="true")
    pond.append_keys("a")
    pond.append_keys("ab")
    member = pond.member("m")
    assert offsets(member.fetch(0)) == [0, 2]
    pond.pond.delete_before(1)
    pond.append_keys("c")
    assert sorted(offsets(member.fetch()) + offsets(member.fetch(max_wait_ms=100))) == [1, 3]
