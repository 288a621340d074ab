"""Clocks that are wrong: what is kept for a time is never forgotten before that time has passed.

A node of its own: a log with stamps of its wall clock, a monotonic clock that restarts with every start, and the
true time, which nobody but the test knows.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.coordinators.groups.settings import GroupSettings
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.runtime import GAP_MS_MAX, CoordinatorTime, replay_batches
from millpond.coordinators.shard import Effects, Request
from millpond.coordinators.transactions.shard import TransactionSettings, TransactionShard
from millpond.metadata.image import Image
from millpond.metadata.records import PartitionRecord, TopicRecord
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
RETENTION_MS = 7 * DAY_MS
NOW_MS = 1_800_000_000_000


class Draws:
    """What a shard takes as its source of ids."""

    def uuid(self) -> UUID:
        return UUID(int=1)

    def below(self, bound: int) -> int:
        return 0


class Node:
    """One coordinator over restarts and set clocks. `true_ms` is what time it really is."""

    def __init__(self, make_shard: Callable[[], Any]) -> None:
        self.make_shard = make_shard
        self.true_ms = NOW_MS
        self.wall_ahead_ms = 0
        self.log = b""
        self.offset = 0
        self.jumps = 0
        self.start()

    @property
    def wall_ms(self) -> int:
        return self.true_ms + self.wall_ahead_ms

    def start(self) -> None:
        self.started_ms = self.true_ms
        self.time = CoordinatorTime(self.wall_ms)
        self.shard = self.make_shard()
        replay_batches(self.shard, self.log, self.time)
        self.step(lambda now_ms: self.shard.on_loaded(now_ms))

    def set_clock(self, ahead_ms: int) -> None:
        self.jumps += 1
        self.wall_ahead_ms = ahead_ms

    def step(self, decide: Callable[[int], Effects]) -> Effects:
        now_ms = self.time.now_ms(self.true_ms - self.started_ms)
        self.shard.set_time(now_ms, self.wall_ms)
        effects = decide(now_ms)
        if effects.records:
            records = [Record(self.offset + index, self.wall_ms, *each) for index, each in enumerate(effects.records)]
            self.log += encode_batch(records, base_offset=self.offset)
            for each in effects.records:
                self.shard.replay(self.offset, *each)
                self.offset += 1
        return effects

    def ask(self, body: m.Message, version: int) -> Any:
        ((_, response),) = self.step(lambda now_ms: self.shard.step(Request(body, version, None), now_ms)).replies
        return response

    def pass_time(self, duration_ms: int) -> None:
        end_ms = self.true_ms + duration_ms
        while True:
            now_ms = self.time.now_ms(self.true_ms - self.started_ms)
            deadline_ms = self.shard.next_deadline_ms()
            if deadline_ms is None or self.true_ms + deadline_ms - now_ms > end_ms:
                break
            self.true_ms += max(deadline_ms - now_ms, 0)
            self.step(self.shard.on_timer)
        self.true_ms = end_ms


def group_node() -> Node:
    image = Image()
    image.replay(TopicRecord("t", UUID(int=1)))
    for number in range(4):
        image.replay(PartitionRecord(number, UUID(int=1), (1,), (1,), leader=1))
    return Node(lambda: GroupShard(image, GroupSettings(offsets_retention_check_interval_ms=HOUR_MS), Draws()))


def commit(node: Node, partition: int = 0, group: str = "g") -> None:
    kind = m.OffsetCommitRequest
    body = kind(
        group_id=group,
        topics=[
            kind.OffsetCommitRequestTopic(
                name="t",
                partitions=[kind.OffsetCommitRequestPartition(partition_index=partition, committed_offset=5)],
            )
        ],
    )
    assert node.ask(body, 9).topics[0].partitions[0].error_code == 0


def has_offset(node: Node, partition: int = 0) -> bool:
    return partition in node.shard.offsets.by_group.get("g", {}).get("t", {})


def test_a_node_that_booted_eight_days_behind_keeps_what_was_committed_then() -> None:
    node = group_node()
    node.set_clock(-8 * DAY_MS)
    commit(node)
    node.set_clock(0)
    commit(node, group="other")
    node.start()
    node.pass_time(2 * HOUR_MS)
    assert has_offset(node)


def test_a_clock_set_a_year_forward_and_back_deletes_nothing() -> None:
    node = group_node()
    commit(node)
    node.set_clock(365 * DAY_MS)
    node.pass_time(3 * HOUR_MS)
    commit(node, group="other")
    node.start()
    node.pass_time(3 * HOUR_MS)
    node.set_clock(0)
    node.start()
    node.pass_time(3 * HOUR_MS)
    assert has_offset(node)


def test_a_node_that_was_down_for_a_month_keeps_the_offsets_of_its_consumers() -> None:
    node = group_node()
    commit(node)
    node.true_ms += 30 * DAY_MS
    node.start()
    node.pass_time(6 * DAY_MS)
    assert has_offset(node)


def test_stamps_are_those_of_the_wall_clock_as_it_is_now() -> None:
    node = group_node()
    node.set_clock(8 * DAY_MS)
    seen: list[bytes | None] = []
    node.shard.replay = lambda *record: seen.append(record[2])
    commit(node)
    (value,) = seen
    assert value is not None
    assert m.OffsetCommitValue.decode(value, 4, 2)[0].commit_timestamp == NOW_MS + 8 * DAY_MS


def test_unused_state_expires_on_time_across_restarts() -> None:
    node = group_node()
    commit(node)
    for _ in range(7 * 24):
        node.pass_time(HOUR_MS)
        commit(node, group="busy")
        node.start()
    node.pass_time(2 * HOUR_MS)
    assert not has_offset(node)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_whatever_the_clock_does_an_offset_outlives_its_retention(seed: int) -> None:
    draw = Random(seed)
    node = group_node()
    committed: dict[int, tuple[int, int]] = {}
    for _ in range(draw.randrange(5, 60)):
        match draw.randrange(6):
            case 0 | 1:
                partition = draw.randrange(4)
                commit(node, partition)
                committed[partition] = node.true_ms, node.jumps
            case 2:
                node.set_clock(draw.choice([0, 1, -1]) * draw.randrange(400 * DAY_MS))
                commit(node, group="other")
            case 3:
                node.true_ms += draw.randrange(3 * DAY_MS)
                node.start()
            case _:
                node.pass_time(draw.randrange(3 * DAY_MS))
        for partition, (at_ms, jumps) in list(committed.items()):
            if not has_offset(node, partition):
                age_ms = node.true_ms - at_ms
                assert age_ms >= RETENTION_MS - (node.jumps - jumps) * GAP_MS_MAX, f"forgotten after {age_ms} ms"
                del committed[partition]


# Transactions.


def transaction_node() -> Node:
    return Node(lambda: TransactionShard(TransactionSettings(), 0, lambda: 1000, lambda _: 0))


def begin(node: Node) -> None:
    body = m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    assert node.ask(body, 4).error_code == 0


def add(node: Node, partition: int) -> int:
    kind = m.AddPartitionsToTxnRequest
    body = kind(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1000,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name="t", partitions=[partition])],
    )
    (topic,) = node.ask(body, 3).results_by_topic_v3_and_below
    return topic.results_by_partition[0].partition_error_code


@pytest.mark.parametrize("ahead_ms", [-8 * DAY_MS, 8 * DAY_MS])
def test_a_clock_that_is_set_ends_no_transaction_and_lets_none_hang(ahead_ms: int) -> None:
    node = transaction_node()
    begin(node)
    assert add(node, 0) == 0
    node.set_clock(ahead_ms)
    node.pass_time(30_000)
    assert node.shard.transactions["x"].state.label == "Ongoing"
    assert add(node, 1) == 0
    node.pass_time(30_001)
    assert node.shard.transactions["x"].state.label == "PrepareAbort"


@pytest.mark.parametrize("ahead_ms", [-8 * DAY_MS, 8 * DAY_MS])
def test_nor_does_it_over_a_restart(ahead_ms: int) -> None:
    node = transaction_node()
    begin(node)
    assert add(node, 0) == 0
    node.set_clock(ahead_ms)
    node.start()
    node.pass_time(59_000)
    assert node.shard.transactions["x"].state.label == "Ongoing"
    node.pass_time(1_001)
    assert node.shard.transactions["x"].state.label == "PrepareAbort"


def test_a_transactional_id_is_kept_when_the_clock_was_behind() -> None:
    node = transaction_node()
    node.set_clock(-30 * DAY_MS)
    begin(node)
    node.set_clock(0)
    node.start()
    node.pass_time(DAY_MS)
    assert "x" in node.shard.transactions
    node.pass_time(7 * DAY_MS)
    assert "x" not in node.shard.transactions
