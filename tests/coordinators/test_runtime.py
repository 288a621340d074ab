"""Where names live, and how a shard is filled from its log."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.coordinators.runtime import CoordinatorTime, partition_for, replay_batches
from millpond.coordinators.shard import Effects, Request
from millpond.wire.records import Record, encode_batch


@pytest.mark.parametrize(
    ("key", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("polygenelubricants", -(1 << 31)),
        ("hello world", 1794106052),
        ("ä", 228),
        ("😀", 1772899),
    ],
)
def test_partition_is_that_of_javas_hash(key: str, hash_code: int) -> None:
    absolute = 0 if hash_code == -(1 << 31) else abs(hash_code)
    for partitions in (1, 2, 50, 1000):
        assert partition_for(key, partitions) == absolute % partitions


@given(st.text(), st.integers(1, 100))
def test_partition_is_one_of_them(key: str, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) < partitions


class Plain:
    """A shard that only remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        self.told.append(("plain", offset, key, value))

    def set_time(self, now_ms: int, wall_ms: int) -> None: ...

    def step(self, request: Request, now_ms: int) -> Effects:
        raise NotImplementedError

    def on_timer(self, now_ms: int) -> Effects:
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        raise NotImplementedError

    def on_loaded(self, now_ms: int) -> Effects:
        raise NotImplementedError


class Transactional(Plain):
    def replay_transactional(
        self, producer_id: int, epoch: int, offset: int, key: bytes, value: bytes | None
    ) -> None:
        self.told.append(("transactional", producer_id, epoch, offset, key, value))

    def replay_marker(self, producer_id: int, epoch: int, committed: bool, offset: int) -> None:
        self.told.append(("marker", producer_id, epoch, committed, offset))


def marker(offset: int, producer: tuple[int, int], kind: int) -> bytes:
    key = struct.pack(">hh", 0, kind)
    return encode_batch(
        [Record(offset, 0, key, struct.pack(">hi", 0, 1))],
        base_offset=offset,
        producer_id=producer[0],
        producer_epoch=producer[1],
        transactional=True,
        control=True,
    )


RECORDS = st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), min_size=1, max_size=4)
PRODUCERS = st.tuples(st.integers(0, 1 << 40), st.integers(0, 100))
BATCHES = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), RECORDS, st.sampled_from([0, 1, 2, 3, 4])),
        st.tuples(st.just("transactional"), RECORDS, PRODUCERS),
        st.tuples(st.just("marker"), PRODUCERS, st.booleans()),
    ),
    max_size=6,
)


@given(BATCHES)
def test_everything_is_replayed_in_order(batches: list[tuple]) -> None:
    data, expected, offset = b"", [], 0
    for batch in batches:
        match batch:
            case ("plain", pairs, codec):
                records = [Record(offset + place, 0, key, value) for place, (key, value) in enumerate(pairs)]
                data += encode_batch(records, base_offset=offset, codec=codec)
                expected += [("plain", each.offset, each.key, each.value) for each in records]
                offset += len(pairs)
            case ("transactional", pairs, (producer_id, epoch)):
                records = [Record(offset + place, 0, key, value) for place, (key, value) in enumerate(pairs)]
                data += encode_batch(
                    records, base_offset=offset, producer_id=producer_id, producer_epoch=epoch, transactional=True
                )
                told = ("transactional", producer_id, epoch)
                expected += [(*told, each.offset, each.key, each.value) for each in records]
                offset += len(pairs)
            case ("marker", producer, committed):
                data += marker(offset, producer, int(committed))
                expected.append(("marker", *producer, committed, offset))
                offset += 1
    shard, plain = Transactional(), Plain()
    assert (
        replay_batches(shard, data, CoordinatorTime(0))
        == replay_batches(plain, data, CoordinatorTime(0))
        == len(data)
    )
    assert shard.told == expected
    assert plain.told == [each for each in expected if each[0] == "plain"]


def test_stops_at_a_torn_tail() -> None:
    whole = encode_batch([Record(0, 0, b"k", b"v")])
    shard = Plain()
    assert replay_batches(shard, whole + whole[:-1], CoordinatorTime(0)) == len(whole)
    assert shard.told == [("plain", 0, b"k", b"v")]


def test_other_control_records_say_nothing() -> None:
    shard = Transactional()
    replay_batches(shard, marker(0, (1, 1), 2), CoordinatorTime(0))
    assert shard.told == []


@pytest.mark.parametrize("key", [None, b"\x00"])
def test_control_record_without_a_type_is_refused(key: bytes | None) -> None:
    with pytest.raises(MalformedMessage):
        replay_batches(Transactional(), encode_batch([Record(0, 0, key, b"")], control=True), CoordinatorTime(0))


def test_record_without_a_key_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        replay_batches(Plain(), encode_batch([Record(0, 0, None, b"v")]), CoordinatorTime(0))
