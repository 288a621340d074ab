"""Lag, rates and what follows from them, out of samples."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from millpond.admin.groups import Group, Member, commit_offsets
from millpond.admin.lag import NEVER, LagWatch, Sample, Unread, catch_up, lags_of, oldest_unread, read_unread
from millpond.admin.offsets import Bounds
from millpond.admin.topics import delete_records
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Pond

ONE = TopicPartition("t", 0)
TWO = TopicPartition("t", 1)
GROUP = Group("g", "stable", "classic", "range", "localhost:9092", (Member("m", None, "c", "h", (ONE, TWO)),))


def sample(at: float, committed: dict[TopicPartition, int], bounds: dict[TopicPartition, Bounds]) -> Sample:
    return Sample(at, {"g": committed}, bounds)


@pytest.mark.parametrize(
    ("lag", "read", "written", "seconds"),
    [
        (100, 20.0, 0.0, 5.0),
        (100, 20.0, 10.0, 10.0),
        (100, 20.0, None, 5.0),
        (100, 20.0, 20.0, NEVER),
        (100, 20.0, 50.0, NEVER),
        (100, 0.0, 0.0, None),
        (100, None, 5.0, None),
        (0, 20.0, 20.0, None),
        (None, 20.0, 20.0, None),
    ],
)
def test_the_time_to_catch_up(
    lag: int | None, read: float | None, written: float | None, seconds: float | None
) -> None:
    assert catch_up(lag, read, written) == seconds


def test_two_samples_give_rates() -> None:
    before = sample(10.0, {ONE: 100}, {ONE: Bounds(0, 500), TWO: Bounds(0, 9)})
    now = sample(12.0, {ONE: 140, TWO: 9}, {ONE: Bounds(0, 510), TWO: Bounds(0, 9)})
    (group_lag,) = lags_of([GROUP], now, before, {ONE: {140: Unread(140, 7000)}})
    one, two = group_lag.partitions
    assert (one.lag, one.behind_ms, one.read_per_second, one.written_per_second) == (370, 7000, 20.0, 5.0)
    assert one.catch_up_seconds == pytest.approx(370 / 15)
    # The first commit of a partition is no reading from 0 to there.
    assert (two.lag, two.behind_ms, two.read_per_second) == (0, None, None)
    assert (group_lag.lag, group_lag.behind_ms, group_lag.read_per_second) == (370, 7000, 20.0)
    assert group_lag.catch_up_seconds == one.catch_up_seconds


def test_offsets_that_went_back_are_no_reading() -> None:
    bounds = {ONE: Bounds(0, 500)}
    (group_lag,) = lags_of([GROUP], sample(2.0, {ONE: 0}, bounds), sample(1.0, {ONE: 400}, bounds), {})
    assert group_lag.read_per_second == 0
    assert group_lag.catch_up_seconds is None


def test_what_is_not_known_is_none_and_not_zero() -> None:
    (group_lag,) = lags_of([GROUP], sample(1.0, {ONE: 5}, {}), None, {})
    assert [(each.lag, each.end, each.read_per_second) for each in group_lag.partitions] == [(None, None, None)] * 2
    assert group_lag.catch_up_seconds is None


def test_records_of_a_partition_with_nothing_committed_are_unread() -> None:
    (group_lag,) = lags_of([GROUP], sample(1.0, {ONE: 5}, {ONE: Bounds(0, 9), TWO: Bounds(20, 50)}), None, {})
    assert (group_lag.lag, group_lag.uncommitted, group_lag.lost) == (34, 30, 0)


def test_a_partition_without_an_owner_counts_with_its_topic(cluster: Cluster, pond: Pond, topic: str) -> None:
    pond.produce(topic, *"abc", partition=0)
    pond.produce(topic, *"de", partition=1)
    commit_offsets(cluster, f"{topic}-group", {TopicPartition(topic, 0): 1})
    (group_lag,) = LagWatch(cluster, [f"{topic}-group"], sample_seconds=0).look()
    assert (group_lag.lag, group_lag.uncommitted) == (4, 2)
    assert group_lag.behind_ms is not None


def test_a_group_has_caught_up_when_its_slowest_partition_has() -> None:
    bounds = {ONE: Bounds(0, 100), TWO: Bounds(0, 1000)}
    moving = lags_of([GROUP], sample(2.0, {ONE: 50, TWO: 50}, bounds), sample(1.0, {ONE: 40, TWO: 40}, bounds), {})
    assert moving[0].catch_up_seconds == 95.0
    # One that stands still says nothing about when.
    stuck = lags_of([GROUP], sample(2.0, {ONE: 50, TWO: 50}, bounds), sample(1.0, {ONE: 40, TWO: 50}, bounds), {})
    assert stuck[0].catch_up_seconds is None


@pytest.mark.parametrize(
    ("following", "lag", "behind_ms"),
    [
        (Unread(98, 500), 2, 500),
        (Unread(99, 500), 1, 500),
        (Unread(100, None), 0, None),
        # It was written after the look at the end: then nothing was unread.
        (Unread(103, 20), 0, None),
        (None, 2, None),
    ],
)
def test_what_has_no_record_is_no_lag(following: Unread | None, lag: int, behind_ms: int | None) -> None:
    now = sample(1.0, {ONE: 98}, {ONE: Bounds(0, 100), TWO: Bounds(0, 0)})
    (group_lag,) = lags_of([GROUP], now, None, {ONE: {98: following}} if following else {})
    assert (group_lag.lag, group_lag.behind_ms, group_lag.lost) == (lag, behind_ms, 0)


def test_the_oldest_unread_record_is_the_next_existing_one() -> None:
    bounds = {ONE: Bounds(30, 100), TWO: Bounds(0, 1000), TopicPartition("t", 2): Bounds(0, 7)}
    committed = {"a": {ONE: 10, TopicPartition("t", 2): 7, TopicPartition("gone", 0): 3}, "b": {ONE: 60, TWO: 1}}
    groups = [Group(name, "empty", "classic", "", "", ()) for name in committed]
    record = oldest_unread(groups, Sample(0.0, committed, bounds))
    assert record == {TWO: {0, 1}, ONE: {30, 60}, TopicPartition("t", 2): {0}}
    assert list(record) == [TWO, ONE, TopicPartition("t", 2)], "the largest lag first"


def test_a_group_on_a_real_node(cluster: Cluster, pond: Pond, topic: str) -> None:
    pond.produce(topic, *"abcdef", partition=0)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    commit_offsets(cluster, f"{topic}-group", {zero: 2, one: 0})
    watch = LagWatch(cluster, [f"{topic}-group"], sample_seconds=0.2)
    (first,) = watch.look()
    assert (first.lag, first.read_per_second, first.catch_up_seconds) == (4, 0.0, None)
    behind = {each.partition: each.behind_ms for each in first.partitions}
    assert behind[1] is None
    assert 0 <= (behind[0] or -1) < 60_000
    commit_offsets(cluster, f"{topic}-group", {zero: 5})
    (second,) = watch.look()
    assert second.lag == 1
    assert (second.read_per_second or 0) > 0
    assert second.catch_up_seconds is not None
    # What was deleted before the group read it is lost, and no lag.
    delete_records(cluster, {zero: 6})
    commit_offsets(cluster, f"{topic}-group", {zero: 0})
    (third,) = watch.look()
    assert (third.lag, third.lost) == (0, 6)


def test_the_age_of_an_offset_without_a_record_is_that_of_the_next_one(
    cluster: Cluster, pond: Pond, topic: str
) -> None:
    producer = Producer(pond.client_settings(transactional_id=f"{topic}-t"))
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0, timestamp=1_000)
    producer.commit_transaction(10)
    pond.producer.produce(topic, b"y", partition=0, timestamp=2_000)
    pond.producer.flush()
    zero = TopicPartition(topic, 0)
    # Offset 1 is the marker; nothing is at 3 yet.
    unread = read_unread(cluster, {zero: {0, 1, 2, 3}})[zero]
    assert {at: each.offset for at, each in unread.items()} == {0: 0, 1: 2, 2: 2, 3: 3}
    ages = [each.age_ms for each in unread.values()]
    assert ages[3] is None
    assert ages[1] == pytest.approx(ages[2], abs=60_000)
    assert (ages[0] or 0) - (ages[1] or 0) == pytest.approx(1_000, abs=900)


def test_a_group_that_has_read_all_has_no_lag_though_a_transaction_ended(
    cluster: Cluster, pond: Pond, topic: str
) -> None:
    producer = Producer(pond.client_settings(transactional_id=f"{topic}-t"))
    producer.init_transactions(10)
    for end in (producer.commit_transaction, producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        producer.flush(10)
        end(10)
    zero = TopicPartition(topic, 0)
    for committed, lag in ((0, 6), (1, 4), (2, 4), (3, 2), (5, 0), (6, 0)):
        commit_offsets(cluster, f"{topic}-group", {zero: committed})
        (group_lag,) = LagWatch(cluster, [f"{topic}-group"], sample_seconds=0).look()
        assert (group_lag.lag, group_lag.behind_ms is None) == (lag, lag == 0), committed
