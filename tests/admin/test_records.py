"""Pages and tails of records: how much they hold, how long they take, and partitions that nobody leads."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin import records
from millpond.admin.errors import Leaderless, Refused
from millpond.admin.excerpts import Extent
from millpond.admin.offsets import Beginning, Bounds, Last, Since
from millpond.admin.records import After, Before, RecordSearch, RecordTail, read_page, readable
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, PartitionInfo, TopicInfo
from millpond.remote.reader import IsUp
from millpond.testing import Pond
from millpond.wire.records import Record

SHOWN = Extent(data_bytes=100, headers=2, headers_bytes=200)
MEGABYTE = 1 << 20


class FakeCluster:
    """A cluster of one topic, as far as records are looked at; each partition is a list of values."""

    patience_seconds = 1.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *partitions: list[bytes]) -> None:
        self.partitions = list(partitions)
        self.leaderless: set[int] = set()
        self.topic_id = UUID(int=1)
        self.fails = False
        self.stamps: list[list[int]] = []
        """Of the records, where they are not in the order of their offsets."""
        self.young: dict[int, int] = {}
        """Of each partition the first offset that was written since somebody looks."""
        monkeypatch.setattr(records, "bounds_of", self.bounds_of)
        monkeypatch.setattr("millpond.remote.offsets.at_times", self.at_times)
        monkeypatch.setattr(records, "_records", self.records)
        monkeypatch.setattr(records, "LEADERS_SECONDS", 0.0)

    def topics(self, names: object = None) -> dict[str, TopicInfo]:
        infos = {
            index: PartitionInfo(-1 if index in self.leaderless else 1, 0) for index in range(len(self.partitions))
        }
        return {"t": TopicInfo("t", self.topic_id, infos)}

    def bounds_of(self, _: object, indexes: list[TopicPartition], *__: object) -> dict[TopicPartition, Bounds]:
        assert not self.leaderless & {each.partition for each in indexes}, "nobody can be asked"
        return {each: Bounds(0, len(self.partitions[each.partition])) for each in indexes}

    def at_times(self, _: object, indexes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {each: self.young.get(each.partition) for each in indexes}

    def records(self, _: object, partition: TopicPartition, start: int, end: int, *__: object) -> Iterator[Record]:
        if self.fails:
            raise Refused("it fails in the middle")
        for offset in range(start, end):
            value = self.partitions[partition.partition][offset]
            stamp = 1000 * offset + partition.partition
            if self.stamps:
                stamp = self.stamps[partition.partition][offset]
            yield Record(offset, stamp, None, value)


def offsets(record: Any) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in record.records]


def test_leaderless_partitions_do_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = FakeCluster(monkeypatch, [b"a"], [b"b"], [b"c"])
    cluster.leaderless = {1}
    page = read_page(cluster, "t", None, Beginning(), 10, SHOWN)
    assert offsets(page) == [(0, 0), (2, 0)]
    assert page.leaderless == (1,)
    assert offsets(read_page(cluster, "t", 2, Beginning(), 10, SHOWN)) == [(2, 0)]
    with pytest.raises(Leaderless, match=r"t\[1\] has no leader now"):
        readable(cluster, "t", 1)
    cluster.leaderless = {0, 1, 2}
    with pytest.raises(Leaderless, match="No partition of t has a leader now"):
        read_page(cluster, "t", None, Last(5), 10, SHOWN)
    with pytest.raises(Refused, match="has no partition 7"):
        readable(cluster, "t", 7)


@pytest.mark.parametrize("point", [Beginning(), Last(20)])
def test_a_page_of_many_partitions_with_large_records_holds_little(
    monkeypatch: pytest.MonkeyPatch, point: Any
) -> None:
    cluster: Any = FakeCluster(monkeypatch)
    cluster.partitions = [[b""] * 20] * 20

    def large(_: object, partition: TopicPartition, start: int, end: int, *__: object) -> Iterator[Record]:
        for offset in range(start, end):
            yield Record(offset, offset, b"k", bytes(MEGABYTE))

    monkeypatch.setattr(records, "_records", large)
    tracemalloc.start()
    try:
        page = read_page(cluster, "t", None, point, 20, SHOWN)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 8 * MEGABYTE, "400 of them are 400 MB"
    assert len(page.records) == 20
    # Of all partitions the first by time, or the last.
    assert {each.offset for each in page.records} == ({0} if point == Beginning() else {19})
    assert {each.value.bytes for each in page.records if each.value} == {MEGABYTE}


def test_a_page_ends_in_time_in_the_middle_of_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = FakeCluster(monkeypatch, [b"x"] * 1_000_000)
    began = time.monotonic()
    page = read_page(cluster, "t", None, Beginning(), 1_000_000, SHOWN, seconds=0.5)
    assert time.monotonic() - began < 5
    assert page.records
    assert not page.is_whole
    assert page.shown == {TopicPartition("t", 0): (0, page.records[-1].offset + 1)}


class Hidden:
    """Answers in which there are only records that nobody is shown. Each takes a second, by the clock that it is."""

    time_ns = staticmethod(time.time_ns)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        monkeypatch.setattr(records, "time", self)
        monkeypatch.setattr(records, "_records", self._read)

    def monotonic(self) -> float:
        return self._now

    def _read(self, _: object, __: object, start: int, *more: Any) -> Iterator[Record]:
        is_up: IsUp = more[-1]
        while not is_up(start + 3):
            self._now += 1
        yield from ()


def test_looks_end_in_time_where_no_record_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = FakeCluster(monkeypatch, [b"x"] * 10)
    tail = RecordTail("t", None, "read_committed", 50, SHOWN)
    tail.read_new(cluster)
    cluster.partitions[0] += [b"x"] * 10
    Hidden(monkeypatch)
    page = read_page(cluster, "t", 0, Beginning(), 50, SHOWN)
    assert (page.records, page.is_whole) == ((), False)
    read_new = tail.read_new(cluster)
    assert (read_new.records, read_new.skipped) == ([], 7)


@pytest.mark.parametrize(("point", "unread"), [(Beginning(), (0, 0)), (Last(4), (10, 10))])
def test_a_page_that_ended_in_time_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, point: Any, unread: tuple[int, int]
) -> None:
    """So the next one leaves nothing out: neither the rest of a partition nor one that had no turn."""
    cluster: Any = FakeCluster(monkeypatch, [b"x"] * 10, [b"x"] * 10)
    Hidden(monkeypatch)
    page = read_page(cluster, "t", None, point, 4, SHOWN)
    start = unread[0] and 6
    assert page.shown == {TopicPartition("t", 0): (start, start + 3), TopicPartition("t", 1): unread}
    monkeypatch.setattr(records, "_records", cluster.records)
    edges = {each.partition: shown[1] for each, shown in page.shown.items()}
    following = read_page(cluster, "t", None, After(edges), 20, SHOWN)
    left = [(index, offset) for index, edge in edges.items() for offset in range(edge, 10)]
    assert sorted(offsets(following)) == left


def test_a_search_comes_back_in_time_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = FakeCluster(monkeypatch, [b"x"] * 10)
    Hidden(monkeypatch)
    search = RecordSearch(cluster, "t", None, Beginning(), "x", SHOWN)
    assert (search.run_for(5.0, 10), search.scanned, search.is_done) == ([], 3, False)
    assert (search.run_for(5.0, 10), search.scanned, search.is_done) == ([], 6, False)
    monkeypatch.setattr(records, "_records", cluster.records)
    assert [each.offset for each in search.run_for(30.0, 10)] == [6, 7, 8, 9]
    assert (search.scanned, search.is_done) == (10, True)


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=4),
    st.integers(1, 7),
    st.booleans(),
)
def test_page_after_page_every_record_is_shown_once(stamps: list[list[int]], limit: int, is_older: bool) -> None:
    """In whatever order they were stamped, backwards from the end and forwards from the beginning."""
    with pytest.MonkeyPatch.context() as patch:
        cluster: Any = FakeCluster(patch, *([b""] * len(each) for each in stamps))
        cluster.stamps = stamps
        seen: list[tuple[int, int]] = []
        point: Any = Last(limit) if is_older else Beginning()
        for _ in range(100):
            page = read_page(cluster, "t", None, point, limit, SHOWN)
            assert len(page.records) <= limit
            seen += offsets(page)[::-1] if is_older else offsets(page)
            edges = {each.partition: shown[0 if is_older else 1] for each, shown in page.shown.items()}
            if not page.records:
                break
            point = Before(edges) if is_older else After(edges)
    assert sorted(seen) == [(index, offset) for index, each in enumerate(stamps) for offset in range(len(each))]
    for index in range(len(stamps)):
        own = [offset for partition, offset in seen if partition == index]
        assert own == sorted(own, reverse=is_older), "within a partition the order is that of the log"


def test_a_page_from_a_moment_on_has_the_first_records_since_then(cluster: Cluster, pond: Pond, topic: str) -> None:
    for partition in (0, 1):
        pond.produce(topic, *(f"{partition}-{number}" for number in range(5)), partition=partition)
    page = read_page(cluster, topic, None, Since(0), 3, SHOWN)
    first = sorted(page.records, key=lambda each: each.timestamp_ms)[0]
    everything = read_page(cluster, topic, None, Since(0), 10, SHOWN)
    assert first == everything.records[0]
    assert page.records == everything.records[:3]


def test_a_tail_begins_now_and_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = FakeCluster(monkeypatch, [b"before"], [b"before"])
    cluster.leaderless = {1}
    tail = RecordTail("t", None, "read_uncommitted", 3, SHOWN)
    assert (offsets(tail.read_new(cluster)), tail.read_new(cluster).leaderless) == ([], (1,))
    cluster.partitions[0].append(b"new")
    cluster.fails = True
    with pytest.raises(Refused, match="in the middle"):
        tail.read_new(cluster)
    # What nobody was shown comes with the next look. The other partition has a leader now, and got nothing since.
    cluster.fails, cluster.leaderless = False, set()
    assert offsets(tail.read_new(cluster)) == [(0, 1)]
    cluster.partitions[1].append(b"new")
    assert offsets(tail.read_new(cluster)) == [(1, 1)]
    cluster.partitions[0] += [b"many"] * 10
    read_new = tail.read_new(cluster)
    assert (offsets(read_new), read_new.skipped) == ([(0, 9), (0, 10), (0, 11)], 7)


@pytest.mark.parametrize("leaderless", [{1}, {0, 1}])
def test_what_comes_with_the_leader_is_not_left_out(monkeypatch: pytest.MonkeyPatch, leaderless: set[int]) -> None:
    """A partition had none when somebody began to look, and gets its first records before the look that finds it."""
    cluster: Any = FakeCluster(monkeypatch, [b"before"], [b"before"])
    cluster.leaderless = leaderless
    tail = RecordTail("t", None, "read_uncommitted", 3, SHOWN)
    with contextlib.suppress(Leaderless):
        assert offsets(tail.read_new(cluster)) == []
    cluster.partitions[1].append(b"new")
    cluster.leaderless, cluster.young = set(), {1: 1}
    assert offsets(tail.read_new(cluster)) == [(1, 1)]
    assert offsets(tail.read_new(cluster)) == []


def test_a_tail_follows_a_recreated_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = FakeCluster(monkeypatch, [b"old"] * 100)
    tail = RecordTail("t", None, "read_uncommitted", 50, SHOWN)
    tail.read_new(cluster)
    cluster.topic_id, cluster.partitions = UUID(int=2), [[b"first", b"second"]]
    assert offsets(tail.read_new(cluster)) == [(0, 0), (0, 1)]
    assert offsets(tail.read_new(cluster)) == []
    # A partition that was added is new from its beginning, too.
    cluster.partitions.append([b"here"])
    assert offsets(tail.read_new(cluster)) == [(1, 0)]
