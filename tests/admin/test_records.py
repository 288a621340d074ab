"""Pages and tails of records: how much they hold, how long they take, and partitions that nobody leads."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from millpond.admin import records
from millpond.admin.errors import Leaderless, Refused
from millpond.admin.excerpts import Extent
from millpond.admin.offsets import Beginning, Bounds, Last, Since
from millpond.admin.records import RecordTail, read_page, readable
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, PartitionInfo, TopicInfo
from millpond.testing import Pond
from millpond.wire.records import Record

SHOWN = Extent(data_bytes=100, headers=2, headers_bytes=200)
MEGABYTE = 1 << 20


class Stage:
    """A cluster of one topic, as far as records are looked at; each partition is a list of values."""

    patience_seconds = 1.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *partitions: list[bytes]) -> None:
        self.partitions = list(partitions)
        self.leaderless: set[int] = set()
        self.topic_id = UUID(int=1)
        self.fails = False
        monkeypatch.setattr(records, "bounds_of", self.bounds_of)
        monkeypatch.setattr(records, "_records", self.records)
        monkeypatch.setattr(records, "LEADERS_SECONDS", 0.0)

    def topics(self, names: object = None) -> dict[str, TopicInfo]:
        infos = {
            index: PartitionInfo(-1 if index in self.leaderless else 1, 0) for index in range(len(self.partitions))
        }
        return {"t": TopicInfo("t", self.topic_id, infos)}

    def bounds_of(self, _: object, wanted: list[TopicPartition], *__: object) -> dict[TopicPartition, Bounds]:
        assert not self.leaderless & {each.partition for each in wanted}, "nobody can be asked"
        return {each: Bounds(0, len(self.partitions[each.partition])) for each in wanted}

    def records(self, _: object, partition: TopicPartition, start: int, end: int, *__: object) -> Iterator[Record]:
        if self.fails:
            raise Refused("it fails in the middle")
        for offset in range(start, end):
            value = self.partitions[partition.partition][offset]
            yield Record(offset, 1000 * offset + partition.partition, None, value)


def offsets(found: Any) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in found.records]


def test_partitions_that_nobody_leads_do_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stage: Any = Stage(monkeypatch, [b"a"], [b"b"], [b"c"])
    stage.leaderless = {1}
    page = read_page(stage, "t", None, Beginning(), 10, SHOWN)
    assert offsets(page) == [(0, 0), (2, 0)]
    assert page.leaderless == (1,)
    assert offsets(read_page(stage, "t", 2, Beginning(), 10, SHOWN)) == [(2, 0)]
    with pytest.raises(Leaderless, match=r"t\[1\] has no leader now"):
        readable(stage, "t", 1)
    stage.leaderless = {0, 1, 2}
    with pytest.raises(Leaderless, match="No partition of t has a leader now"):
        read_page(stage, "t", None, Last(5), 10, SHOWN)
    with pytest.raises(Refused, match="has no partition 7"):
        readable(stage, "t", 7)


@pytest.mark.parametrize("point", [Beginning(), Last(20)])
def test_a_page_of_many_partitions_with_large_records_holds_little(
    monkeypatch: pytest.MonkeyPatch, point: Any
) -> None:
    stage: Any = Stage(monkeypatch)
    stage.partitions = [[b""] * 20] * 20

    def large(_: object, partition: TopicPartition, start: int, end: int, *__: object) -> Iterator[Record]:
        for offset in range(start, end):
            yield Record(offset, offset, b"k", bytes(MEGABYTE))

    monkeypatch.setattr(records, "_records", large)
    tracemalloc.start()
    try:
        page = read_page(stage, "t", None, point, 20, SHOWN)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 8 * MEGABYTE, "400 of them are 400 MB"
    assert len(page.records) == 20
    # Of all partitions the first by time, or the last.
    assert {each.offset for each in page.records} == ({0} if point == Beginning() else {19})
    assert {each.value.bytes for each in page.records if each.value} == {MEGABYTE}


def test_a_page_ends_in_time_in_the_middle_of_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    stage: Any = Stage(monkeypatch, [b"x"] * 1_000_000)
    began = time.monotonic()
    page = read_page(stage, "t", None, Beginning(), 1_000_000, SHOWN, seconds=0.05)
    assert time.monotonic() - began < 5
    assert page.records
    assert not page.is_whole


def test_a_page_from_a_moment_on_has_the_first_records_since_then(cluster: Cluster, pond: Pond, topic: str) -> None:
    for partition in (0, 1):
        pond.produce(topic, *(f"{partition}-{number}" for number in range(5)), partition=partition)
    page = read_page(cluster, topic, None, Since(0), 3, SHOWN)
    first = sorted(page.records, key=lambda each: each.timestamp_ms)[0]
    everything = read_page(cluster, topic, None, Since(0), 10, SHOWN)
    assert first == everything.records[0]
    assert page.records == everything.records[:3]


def test_a_tail_begins_now_and_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stage: Any = Stage(monkeypatch, [b"before"], [b"before"])
    stage.leaderless = {1}
    tail = RecordTail("t", None, "read_uncommitted", 3, SHOWN)
    assert (offsets(tail.look(stage)), tail.look(stage).leaderless) == ([], (1,))
    stage.partitions[0].append(b"new")
    stage.fails = True
    with pytest.raises(Refused, match="in the middle"):
        tail.look(stage)
    # What nobody was shown comes with the next look. The other partition has a leader now, and its end is known.
    stage.fails, stage.leaderless = False, set()
    assert offsets(tail.look(stage)) == [(0, 1)]
    stage.partitions[1].append(b"new")
    assert offsets(tail.look(stage)) == [(1, 1)]
    stage.partitions[0] += [b"many"] * 10
    look = tail.look(stage)
    assert (offsets(look), look.skipped) == ([(0, 9), (0, 10), (0, 11)], 7)


def test_a_tail_goes_on_with_a_topic_that_was_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    stage: Any = Stage(monkeypatch, [b"old"] * 100)
    tail = RecordTail("t", None, "read_uncommitted", 50, SHOWN)
    tail.look(stage)
    stage.topic_id, stage.partitions = UUID(int=2), [[b"first", b"second"]]
    assert offsets(tail.look(stage)) == [(0, 0), (0, 1)]
    assert offsets(tail.look(stage)) == []
    # A partition that was added is new from its beginning, too.
    stage.partitions.append([b"here"])
    assert offsets(tail.look(stage)) == [(1, 0)]
