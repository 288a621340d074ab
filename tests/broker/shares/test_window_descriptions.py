"""DescribeShareGroupOffsets with the tagged field `windows`: what the leader of a partition knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.shares.test_share_fetch import ShareServer
from tests.support.share_members import ACCEPT, GROUP, REJECT, RELEASE, initialize

from millpond.base.errors import ErrorCode
from millpond.broker.share_requests.window_descriptions import WINDOWS_AT_ONCE
from millpond.broker.shares.acquisition import AcquireMode
from millpond.broker.shares.holders import HOLDERS_MAX, holders_of
from millpond.broker.shares.verdicts import Acknowledgement
from millpond.broker.shares.window import ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.wire import messages as m

BATCH_MS = 1_700_000_000_000
"""The timestamp of the batches of `make_batch`."""


@pytest.fixture
def pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> ShareServer:
    return ShareServer(make_server, make_batch)


def described(
    pond: ShareServer, *numbers: int, group: str = GROUP, topic: str = "pond", caller: Any = None
) -> dict[int, Any]:
    """The partitions by number; those with a window if none is named."""
    kind = m.DescribeShareGroupOffsetsRequest
    topics = None
    if numbers:
        topics = [kind.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=list(numbers))]
    asked = kind.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
    (found,) = (caller or pond.server.connect()).ask(kind(groups=[asked], windows=True), 1, within_ms=20_000).groups
    assert found.error_code == ErrorCode.NONE, found
    return {each.partition_index: each for each in found.topics[0].partitions} if found.topics else {}


def counts(window: Any) -> tuple[int, int, int]:
    return window.available, window.acquired, window.finished


def events(window: Any) -> tuple[int, ...]:
    return window.delivered, window.accepted, window.released, window.rejected, window.expired


def test_a_window_is_described_by_its_leader(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c", b"d")
    pond.append(b"e")
    member = pond.member("m")
    member.fetch(0, max_records=1)
    member.acknowledge((1, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT))
    pond.run(1_000)
    found = described(pond)
    assert list(found) == [0]
    one, window = found[0], found[0].window
    assert (one.start_offset, one.lag, one.error_code) == (0, 3, 0)
    assert (window.end_offset, window.high_watermark) == (4, 5)
    assert counts(window) == (1, 1, 2)
    assert events(window) == (4, 1, 1, 1, 0)
    assert [(each.member_id, each.records) for each in window.holders] == [("m", 1)]
    assert 28_000 < window.holders[0].lock_left_ms <= 29_000


def test_expired_locks_are_counted_and_the_oldest_record_has_a_time(pond: ShareServer) -> None:
    pond.append(b"a")
    pond.append(b"b")
    member = pond.member("m")
    member.fetch(0)
    assert described(pond)[0].window.oldest_timestamp_ms == BATCH_MS
    pond.run(31_000)
    window = described(pond)[0].window
    assert (counts(window), events(window), window.holders) == ((2, 0, 0), (2, 0, 0, 0, 2), [])
    member.fetch(0)
    member.acknowledge((0, 1, ACCEPT))
    # Nothing is unfinished any longer.
    assert described(pond)[0].window.oldest_timestamp_ms == -1


def test_records_of_a_lost_member_count_as_released(pond: ShareServer) -> None:
    pond.append(b"a", b"b")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    other.fetch(1)
    assert described(pond, 0)[0].window.released == 0
    member.hang_up()
    pond.run(1_000)
    assert described(pond, 0)[0].window.released == 2


def test_partitions_without_a_window_have_none(pond: ShareServer) -> None:
    pond.append(b"a", index=1)
    pond.member("m").fetch(0)
    found = described(pond, 0, 1, 9)
    assert [(each, found[each].window.end_offset, found[each].window.high_watermark) for each in found] == [
        (0, 0, 0),
        (1, -1, 1),
        (9, -1, 0),
    ]
    assert found[1].start_offset == -1
    assert described(pond, group="nobody") == {}
    assert described(pond, 0, group="nobody")[0].window.end_offset == -1
    assert described(pond, 0, topic="nowhere")[0].window.end_offset == -1


def test_many_windows_are_described_in_steps(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    pond = ShareServer(make_server, make_batch)
    count = 2 * WINDOWS_AT_ONCE + 1
    pond.server.create("wide", count)
    for index in range(count):
        initialize(pond.server, "wide", index, start_offset=0)
    pond.member("m").fetch(*range(count), topic="wide", max_wait_ms=1_000)
    found = described(pond)
    assert list(found) == list(range(count))
    assert {each.window.end_offset for each in found.values()} == {0}


def test_only_the_first_holders_are_named() -> None:
    window = ShareWindow(ShareSettings(lock_duration_ms=1_000), 0)
    for number in range(HOLDERS_MAX + 50):
        window.acquire(
            f"m{number} {number}",
            number,
            number,
            number,
            max_records=1,
            batch_size=1,
            mode=AcquireMode.RECORD_LIMIT,
            batches=[(number, number)],
        )
    holders = holders_of(window, 500)
    assert len(holders) == HOLDERS_MAX
    assert holders[0] == ("m0", 1, 500)


def test_the_sessions_of_a_member_are_one_holder() -> None:
    window = ShareWindow(ShareSettings(lock_duration_ms=1_000), 0)
    for number in range(3):
        window.acquire(
            f"m {number}",
            number,
            number,
            10 * number,
            max_records=1,
            batch_size=1,
            mode=AcquireMode.RECORD_LIMIT,
            batches=[(number, number)],
        )
    assert holders_of(window, 100) == [("m", 3, 900)]


def ranges(pond: ShareServer, ranges_max: int, groups: tuple[str, ...] = (GROUP,)) -> list[list[tuple[int, ...]]]:
    kind = m.DescribeShareGroupOffsetsRequest
    asked = [kind.DescribeShareGroupOffsetsRequestGroup(group_id=each, topics=None) for each in groups]
    request = kind(groups=asked, windows=True, ranges_max=ranges_max)
    return [
        [(each.first_offset, each.last_offset, each.state, each.deliveries) for each in part.window.ranges]
        for group in pond.server.connect().ask(request, 1, within_ms=20_000).groups
        for topic in group.topics
        for part in topic.partitions
    ]


def test_the_first_ranges_are_listed_where_one_group_is_asked_for(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c", b"d", b"e")
    member = pond.member("m")
    member.fetch(0, max_records=1)
    member.acknowledge((1, 1, ACCEPT), (2, 3, RELEASE))
    pond.run(1_000)
    everything = [(0, 0, 1, 1), (1, 1, 2, 0), (2, 3, 0, 1), (4, 4, 1, 1)]
    assert ranges(pond, 10) == [everything]
    assert ranges(pond, 2) == [everything[:2]]
    assert ranges(pond, 0) == ranges(pond, -1) == [[]]
    assert ranges(pond, 10, (GROUP, "other")) == [[]]


def test_what_no_member_reads_is_described_as_it_was_written(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c", b"d")
    pond.append(b"e")
    member = pond.member("m")
    member.fetch(0)
    member.acknowledge((0, 0, ACCEPT), (2, 2, REJECT))
    member.hang_up()
    pond.run(2_000)
    kind = m.DescribeShareGroupOffsetsRequest
    named = [kind.DescribeShareGroupOffsetsRequestTopic(topic_name="pond", partitions=[0, 1, 7])]
    asked = kind.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=named)

    def ask(ranges_max: int) -> list[Any]:
        request = kind(groups=[asked], windows=True, ranges_max=ranges_max)
        (group,) = pond.server.connect().ask(request, 1, within_ms=20_000).groups
        assert group.error_code == ErrorCode.NONE, group
        found: list[Any] = group.topics[0].partitions
        return found

    assert [each.window.end_offset for each in ask(0)] == [-1, -1, -1]
    first, second, missing = ask(10)
    # The coordinator's start is the one of the last write: the first record is finished.
    assert (first.start_offset, first.lag, first.window.end_offset) == (1, 3, 5)
    listed = [(each.first_offset, each.last_offset, each.state, each.deliveries) for each in first.window.ranges]
    assert listed == [(1, 1, 0, 1), (2, 2, 4, 0), (3, 4, 0, 1)]
    assert counts(first.window) == (3, 0, 1)
    assert first.window.holders == []
    assert first.window.oldest_timestamp_ms == BATCH_MS
    assert (second.start_offset, second.lag, second.window.end_offset, second.window.ranges) == (0, 0, 0, [])
    assert (missing.start_offset, missing.window.end_offset) == (-1, -1)
    # The read has fenced nobody: a member continues.
    other = pond.member("n")
    other.fetch(0)
    assert [(each.first_offset, each.last_offset) for each in ask(1)[0].window.ranges] == [(1, 1)]
    other.acknowledge((1, 1, ACCEPT), (3, 4, ACCEPT))
    assert ask(10)[0].lag == 0


def test_a_delayed_range_is_named(pond: ShareServer) -> None:
    pond.append(b"a", b"b")
    member = pond.member("m")
    member.fetch(0)
    leader = next(iter(pond.server.broker.contexts.data.shares().known(GROUP).leaders.values()))
    acknowledgement = Acknowledgement(1, 1, [RELEASE], delay_ms=60_000)
    (holder, _, _) = next(leader.window.holders())
    leader.acknowledge(holder, [acknowledgement])
    pond.run(1_000)
    assert ranges(pond, 10) == [[(0, 0, 1, 1), (1, 1, 5, 1)]]
    assert described(pond)[0].window.delayed == 1
