from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.records import (
    SNAPSHOT_KEY,
    UPDATE_KEY,
    Update,
    read_key,
    read_snapshot,
    read_update,
    snapshot_record,
    tombstone,
    update_record,
)
from millpond.coordinators.shares.state import ShareState
from millpond.coordinators.shares.state_batches import Failure, RecordState, StateBatch
from millpond.wire import messages as m

PARTITION = SharePartition("g", UUID(int=1), 2)
BATCHES = st.lists(
    st.builds(
        lambda first, more, state, deliveries, failure: StateBatch(
            first, first + more, state, deliveries, failure=failure
        ),
        st.integers(0, 1 << 60),
        st.integers(0, 100),
        st.sampled_from(RecordState),
        st.integers(0, 100),
        st.none() | st.builds(Failure, st.text(min_size=1, max_size=5), st.text(max_size=5)),
    ),
    max_size=6,
)


@given(BATCHES, st.integers(0, 1 << 16), st.integers(-1, 1 << 31 - 1), st.integers(-1, 1 << 60))
def test_records_are_read_back_as_they_were(
    batches: list[StateBatch], snapshot_epoch: int, leader_epoch: int, start_offset: int
) -> None:
    snapshot_epoch %= 1 << 16
    state = ShareState(7, leader_epoch, start_offset, batches, snapshot_epoch=snapshot_epoch)
    key, value = snapshot_record(PARTITION, state)
    assert value is not None
    assert read_key(key) == (SNAPSHOT_KEY, PARTITION)
    read = read_snapshot(value)
    assert (read.state_epoch, read.leader_epoch, read.start_offset) == (7, leader_epoch, start_offset)
    assert (read.snapshot_epoch, read.batches()) == (snapshot_epoch, state.batches())
    key, value = update_record(PARTITION, snapshot_epoch, leader_epoch, start_offset, batches)
    assert value is not None
    assert read_key(key) == (UPDATE_KEY, PARTITION)
    assert read_update(value) == Update(snapshot_epoch, leader_epoch, start_offset, batches)


def test_the_bytes_are_kafkas() -> None:
    state = ShareState(3, 4, 10, [StateBatch(11, 12, RecordState.AVAILABLE, 2)], snapshot_epoch=5)
    key, value = snapshot_record(PARTITION, state)
    # version, group id, topic id, partition
    assert key.hex() == "0000" + "0001" + b"g".hex() + "00" * 15 + "01" + "00000002"
    assert value is not None
    # version, epochs of snapshot, state and leader, start offset, one batch, no tagged fields
    assert value.hex() == (
        "0000" + "0005" + "00000003" + "00000004" + "000000000000000a"
        + "02" + "000000000000000b" + "000000000000000c" + "00" + "0002" + "00" + "00"
    )  # fmt: skip
    key, value = update_record(PARTITION, 5, 4, 10, [])
    assert key.hex() == "0001" + "0001" + b"g".hex() + "00" * 15 + "01" + "00000002"
    assert value is not None
    assert value.hex() == "0000" + "0005" + "00000004" + "000000000000000a" + "01" + "00"


def test_a_tombstone_has_the_key_of_a_snapshot() -> None:
    assert tombstone(PARTITION) == (snapshot_record(PARTITION, ShareState(1, 0, 0)).key, None)


def test_newer_kinds_are_skipped() -> None:
    assert read_key(bytes.fromhex("0002") + b"anything") is None


def test_damaged_records() -> None:
    with pytest.raises(MalformedMessage):
        read_key(b"\0")
    for value in (b"\0", bytes.fromhex("0001") + bytes(40)):
        with pytest.raises(MalformedMessage):
            read_snapshot(value)
    batch = m.ShareUpdateValue.StateBatch(first_offset=5, last_offset=4, delivery_state=0, delivery_count=0)
    body = m.ShareUpdateValue(snapshot_epoch=0, leader_epoch=0, start_offset=0, state_batches=[batch])
    for first, state in ((5, 0), (-1, 0), (0, 5), (0, -1)):
        batch.first_offset, batch.delivery_state = first, state
        with pytest.raises(MalformedMessage):
            read_update(bytes(2) + body.encode(0))
