"""The state of share partitions, told in transcripts. After each step the coordinator is loaded from its log, once
whole and once from where it is needed, and must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode as E
from millpond.base.errors import MalformedMessage
from millpond.coordinators.shard import Request
from millpond.wire import messages as m
from support.share_coordinator import Coordinator, content

# Requests


def test_a_leader_writes_what_the_next_one_reads(coordinator: Any) -> None:
    assert coordinator.initialise(1, 10) == E.NONE
    assert coordinator.written == ["snapshot of 0"]
    assert coordinator.read(5) == (1, 10, "")
    assert coordinator.written == ["update of 0"], "the epoch of the leader"
    assert coordinator.write(5, 10, (10, 14, "accepted", 1), (15, 16, "available", 2)) == E.NONE
    assert coordinator.write(5, 10, (15, 15, "accepted", 3)) == E.NONE
    assert coordinator.read(6) == (1, 10, "10-15 accepted x0, 16-16 available x2")
    assert coordinator.write(6, 16, (20, 21, "archived", 5)) == E.NONE
    assert coordinator.read(6) == (1, 16, "16-16 available x2, 20-21 archived x0")
    assert coordinator.written == [], "a leader that reads again writes nothing"


def test_the_start_offset_never_goes_back(coordinator: Any) -> None:
    coordinator.initialise(1, 0)
    coordinator.write(1, 10, (10, 11, "accepted", 1))
    coordinator.write(1, 5, (5, 9, "available", 1), (12, 12, "available", 1))
    assert coordinator.read(1) == (1, 10, "10-11 accepted x0, 12-12 available x1")
    coordinator.write(1, -1, (13, 13, "available", 2))
    assert coordinator.read(1)[1] == 10


def test_a_group_that_has_no_start_offset_yet(coordinator: Any) -> None:
    coordinator.initialise(1, -1)
    assert coordinator.read(3) == (1, -1, "")
    assert coordinator.summary() == (1, 3, -1, 0)
    coordinator.write(3, 1_000, (1_000, 1_004, "accepted", 1))
    assert coordinator.read(3) == (1, 1_000, "1000-1004 accepted x0")


def test_earlier_leaders_are_fenced(coordinator: Any) -> None:
    coordinator.initialise(1, 0)
    assert coordinator.read(4)[0] == 1
    assert coordinator.write(3, 0, (0, 9, "accepted", 1)) == E.FENCED_LEADER_EPOCH
    assert coordinator.read(3) == E.FENCED_LEADER_EPOCH
    coordinator.reload()
    assert coordinator.write(3, 0, (0, 9, "accepted", 1)) == E.FENCED_LEADER_EPOCH
    assert coordinator.write(5, 0, (0, 4, "accepted", 1)) == E.NONE, "its read is still on the way"
    assert coordinator.write(4, 0, (0, 9, "accepted", 1)) == E.FENCED_LEADER_EPOCH
    assert coordinator.read(-1) == (1, 0, "0-4 accepted x0"), "tools have no epoch"


def test_a_state_that_begins_again_fences_writers_of_the_one_before(coordinator: Any) -> None:
    coordinator.initialise(1, 0)
    coordinator.write(2, 0, (0, 9, "accepted", 1))
    assert coordinator.initialise(2, 4) == E.NONE
    assert coordinator.read(2) == (2, 4, "")
    assert coordinator.write(2, 10, (10, 19, "accepted", 1), state_epoch=1) == E.FENCED_STATE_EPOCH
    assert coordinator.write(1, 4, state_epoch=2) == E.FENCED_LEADER_EPOCH, "the epochs of leaders are not forgotten"
    assert coordinator.initialise(1, 0) == E.FENCED_STATE_EPOCH
    assert coordinator.write(2, 4, (4, 4, "accepted", 1), state_epoch=3) == E.FENCED_STATE_EPOCH
    assert coordinator.write(2, 4, (4, 4, "accepted", 1), state_epoch=2) == E.NONE


def test_a_repeated_initialisation_changes_nothing(coordinator: Any) -> None:
    coordinator.initialise(1, 0)
    coordinator.write(2, 0, (0, 9, "accepted", 1))
    assert coordinator.initialise(1, 0) == E.NONE
    assert coordinator.written == []
    assert coordinator.read(2) == (1, 0, "0-9 accepted x0")


def test_state_that_was_never_initialised(coordinator: Any) -> None:
    assert coordinator.read(1) == E.INVALID_REQUEST
    assert coordinator.write(1, 0, (0, 9, "accepted", 1)) == E.INVALID_REQUEST
    assert coordinator.summary() == (0, 0, -1, -1)
    assert coordinator.delete() == E.NONE
    assert coordinator.log == []


def test_deleted_state_is_gone(coordinator: Any) -> None:
    coordinator.initialise(3, 0)
    coordinator.write(2, 0, (0, 9, "accepted", 1), state_epoch=3)
    assert coordinator.delete() == E.NONE
    assert coordinator.written == ["tombstone of 0"]
    assert coordinator.read(2) == E.INVALID_REQUEST
    assert coordinator.initialise(1, 5) == E.NONE, "with its epochs"
    assert coordinator.read(1) == (1, 5, "")


def test_topics_that_do_not_exist(coordinator: Any) -> None:
    other = UUID(int=8)
    assert coordinator.initialise(1, 0, topic=other) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.initialise(1, 0, partition=100) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.summary(topic=other) == E.UNKNOWN_TOPIC_OR_PARTITION
    coordinator.initialise(1, 0)
    coordinator.topics.clear()
    assert coordinator.read(1) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.write(1, 0) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.delete() == E.NONE, "what is left of a deleted topic can be deleted"
    assert coordinator.shard.states == {}


def test_deleted_topics_are_forgotten(coordinator: Any) -> None:
    coordinator.topics[UUID(int=8)] = 2
    for partition in range(3):
        coordinator.initialise(1, 0, partition=partition)
    coordinator.initialise(1, 0, topic=UUID(int=8))
    assert coordinator.take(coordinator.shard.forget_topics({UUID(int=7)})) == [
        "tombstone of 0", "tombstone of 1", "tombstone of 2",
    ]  # fmt: skip
    assert [each.topic_id for each in coordinator.shard.states] == [UUID(int=8)]


@pytest.mark.parametrize("batch", [(5, 4, "available", 1), (-1, 4, "available", 1), (0, 4, "available", -1)])
def test_batches_that_cannot_be(coordinator: Any, batch: Any) -> None:
    coordinator.initialise(1, 0)
    assert coordinator.write(1, 0, batch) == E.INVALID_REQUEST
    assert len(coordinator.log) == 1


def test_acquired_records_are_not_written_down(coordinator: Any) -> None:
    kind = m.WriteShareGroupStateRequest
    coordinator.initialise(1, 0)
    held = kind.StateBatch(first_offset=0, last_offset=4, delivery_state=1, delivery_count=1)
    given = kind.PartitionData(partition=0, state_epoch=1, leader_epoch=1, start_offset=0, state_batches=[held])
    body = kind(group_id="g", topics=[kind.WriteStateData(topic_id=UUID(int=7), partitions=[given])])
    ((result,),) = [each.partitions for each in coordinator.ask(body).results]
    assert result.error_code == E.INVALID_REQUEST


def test_one_request_for_many_partitions(coordinator: Any) -> None:
    kind = m.InitializeShareGroupStateRequest
    partitions = [kind.PartitionData(partition=each, state_epoch=1, start_offset=each) for each in (0, 1, 1, -1, 200)]
    body = kind(group_id="g", topics=[kind.InitializeStateData(topic_id=UUID(int=7), partitions=partitions)])
    ((*results,),) = [each.partitions for each in coordinator.ask(body).results]
    assert [(each.partition, each.error_code) for each in results] == [
        (0, E.NONE),
        (1, E.NONE),
        (1, E.INVALID_REQUEST),
        (-1, E.INVALID_REQUEST),
        (200, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert coordinator.written == ["snapshot of 0", "snapshot of 1"]
    body.group_id = ""
    ((*results,),) = [each.partitions for each in coordinator.ask(body).results]
    assert {each.error_code for each in results} == {E.INVALID_REQUEST}


def test_the_summary_counts_finished_records(coordinator: Any) -> None:
    coordinator.initialise(1, 10)
    coordinator.write(4, 10, (12, 13, "accepted", 1), (14, 14, "available", 1), (15, 15, "archived", 5))
    assert coordinator.summary() == (1, 4, 10, 3)


def test_a_message_for_someone_else_is_our_bug(coordinator: Any) -> None:
    with pytest.raises(AssertionError):
        coordinator.shard.step(Request(m.HeartbeatRequest(), 0, "me"), 0)


# Snapshots


def test_a_snapshot_follows_every_so_many_updates(coordinator: Any) -> None:
    coordinator.initialise(1, 0)
    kinds = []
    for offset in range(8):
        coordinator.write(1, 0, (offset, offset, "accepted", 1))
        kinds += coordinator.written
    assert kinds == [*["update of 0"] * 3, "snapshot of 0", *["update of 0"] * 3, "snapshot of 0"]
    assert coordinator.shard.first_needed_offset() == 8
    assert coordinator.read(1) == (1, 0, "0-7 accepted x0")


def test_a_large_state_has_fewer_snapshots(coordinator: Any) -> None:
    """Otherwise a partition with a hundred thousand gaps would write all of them again for every few records."""
    coordinator.initialise(1, 0)
    coordinator.write(1, 0, *((offset, offset, "accepted", 1) for offset in range(0, 200, 2)))
    snapshots = 0
    for offset in range(1, 201, 2):
        coordinator.write(1, 0, (offset + 1_000, offset + 1_000, "available", 1))
        snapshots += "snapshot of 0" in coordinator.written
    assert snapshots == 1


def test_a_partition_that_rests_does_not_keep_the_log(coordinator: Any) -> None:
    coordinator.initialise(1, 3, partition=0)
    coordinator.initialise(1, 0, partition=1)
    for offset in range(12):
        coordinator.write(1, 0, (offset, offset, "accepted", 1), partition=1)
    assert coordinator.shard.first_needed_offset() == 0
    assert coordinator.shard.next_deadline_ms() == 6_000
    assert coordinator.pass_time(999) == []
    assert coordinator.pass_time(1) == ["snapshot of 0"], "the other one wrote its own a moment ago"
    assert coordinator.shard.first_needed_offset() > 0
    assert coordinator.read(1, partition=0) == (1, 3, "")
    assert coordinator.shard.next_deadline_ms() == 7_000
    for _ in range(5):
        assert coordinator.pass_time(1_000) == [], "where all rest, nothing is written"


@pytest.mark.parametrize(("limit", "value"), [("SNAPSHOTS_AT_ONCE_MAX", 2), ("SNAPSHOT_RANGES_AT_ONCE", 6)])
def test_a_sweep_of_many_partitions_comes_in_steps(
    make_coordinator: Callable[..., Any], monkeypatch: Any, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"millpond.coordinators.shares.shard.{limit}", value)
    coordinator = make_coordinator()
    for partition in range(3):
        coordinator.initialise(1, 0, partition=partition)
        coordinator.write(1, 0, (1, 1, "accepted", 1), (3, 3, "accepted", 1), partition=partition)
    coordinator.initialise(1, 0, partition=3)
    for offset in range(20):
        coordinator.write(1, 0, (offset, offset, "accepted", 1), partition=3)
    assert coordinator.pass_time(1_000) == ["snapshot of 0", "snapshot of 1"]
    assert coordinator.pass_time(1) == ["snapshot of 2"]


def test_without_state_nothing_in_the_log_is_needed(coordinator: Any) -> None:
    coordinator.initialise(1, 0)
    coordinator.delete()
    assert coordinator.shard.first_needed_offset() == 2


def test_an_update_without_its_snapshot_is_a_damaged_log(coordinator: Any) -> None:
    coordinator.initialise(1, 0)
    coordinator.write(1, 0, (0, 0, "accepted", 1))
    with pytest.raises(MalformedMessage):
        coordinator.replayed(1).on_loaded(coordinator.now_ms)


def test_an_update_may_outlive_its_snapshot_if_a_later_one_follows(coordinator: Any) -> None:
    """The log is deleted up to the oldest snapshot that is needed, which may be that of another partition."""
    coordinator.initialise(1, 0)
    coordinator.initialise(1, 0, partition=1)
    coordinator.write(1, 0, (0, 0, "accepted", 1))
    assert coordinator.initialise(2, 5) == E.NONE
    assert coordinator.shard.first_needed_offset() == 1
    loaded = coordinator.replayed(1)
    loaded.on_loaded(coordinator.now_ms)
    assert content(loaded) == content(coordinator.shard)
    coordinator.write(1, 5, (5, 5, "accepted", 1), state_epoch=2)
    coordinator.delete()
    coordinator.replayed(4).on_loaded(coordinator.now_ms)


# Long lives

FINISHED = {"accepted", "archived"}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("initialise"), st.integers(0, 2), st.integers(1, 4), st.integers(-1, 20)),
        st.tuples(
            st.just("write"),
            st.integers(0, 2),
            st.integers(1, 3),
            st.integers(-1, 12),
            st.lists(
                st.tuples(
                    st.integers(0, 30), st.integers(0, 5), st.sampled_from(["available", "accepted", "archived"])
                ),
                max_size=4,
            ),
        ),
        st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.integers(0, 2)),
        st.tuples(st.just("time"), st.sampled_from([1, 1_000])),
        st.tuples(st.just("reload")),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=150)
def test_a_long_life(steps: Any) -> None:
    """Against a dict of offsets for each partition."""
    coordinator = Coordinator()
    model: dict[int, Any] = {}
    for step in steps:
        match step:
            case ("initialise", index, state_epoch, start):
                known = model.get(index)
                error = coordinator.initialise(state_epoch, start, partition=index)
                assert error == (E.FENCED_STATE_EPOCH if known and known["state"] > state_epoch else E.NONE)
                if known is None or known["state"] < state_epoch:
                    leader = known["leader"] if known else 0
                    model[index] = {"state": state_epoch, "leader": leader, "start": start, "records": {}}
            case ("write", index, leader_epoch, start, batches):
                known = model.get(index)
                given = [(first, first + more, name, 2) for first, more, name in batches]
                state_epoch = known["state"] if known else 1
                error = coordinator.write(leader_epoch, start, *given, partition=index, state_epoch=state_epoch)
                if known is None:
                    assert error == E.INVALID_REQUEST
                    continue
                assert error == (E.FENCED_LEADER_EPOCH if leader_epoch < known["leader"] else E.NONE)
                if error == E.NONE:
                    known["leader"] = leader_epoch
                    known["start"] = max(known["start"], start)
                    for first, last, name, deliveries in given:
                        state = (name, 0 if name in FINISHED else deliveries)
                        known["records"] |= dict.fromkeys(range(first, last + 1), state)
                    begin = known["start"]
                    known["records"] = {each: name for each, name in known["records"].items() if each >= begin}
            case ("read", index, leader_epoch):
                known = model.get(index)
                got = coordinator.read(leader_epoch, partition=index)
                if known is None:
                    assert got == E.INVALID_REQUEST
                elif leader_epoch < known["leader"]:
                    assert got == E.FENCED_LEADER_EPOCH
                else:
                    known["leader"] = leader_epoch
                    assert got == (known["state"], known["start"], _runs(known["records"]))
            case ("delete", index):
                assert coordinator.delete(partition=index) == E.NONE
                model.pop(index, None)
            case ("time", ms):
                coordinator.pass_time(ms)
            case ("reload",):
                coordinator.reload()


def _runs(records: dict[int, tuple[str, int]]) -> str:
    runs: list[list[Any]] = []
    for offset in sorted(records):
        if runs and runs[-1][1] == offset - 1 and runs[-1][2] == records[offset]:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset, records[offset]])
    return ", ".join(f"{first}-{last} {name} x{deliveries}" for first, last, (name, deliveries) in runs)
