"""Records of a share fetch: acquired ones, gaps, and bytes that cannot be read."""

from __future__ import annotations

import pytest

from millpond.base.errors import MalformedMessage
from millpond.remote.shares.acquired_records import OFFSETS_MAX, decode_acquired
from millpond.wire.records import Record, encode_batch


def batch(*offsets: int, base: int | None = None, last: int | None = None, **more: object) -> bytes:
    base = offsets[0] if base is None else base
    records = [Record(offset, 0, None, b"%d" % offset) for offset in offsets]
    delta = None if last is None else last - base
    return encode_batch(records, base_offset=base, last_offset_delta=delta, **more)  # type: ignore[arg-type]


def test_only_acquired_offsets_of_a_batch_are_delivered() -> None:
    acquired = decode_acquired(batch(0, 1, 2, 3), [(1, 2, 4)])
    assert [(record.value, deliveries) for record, deliveries in acquired.records] == [(b"1", 4), (b"2", 4)]
    assert not acquired.gaps
    assert not acquired.unreadable


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_every_codec(codec: int) -> None:
    assert len(decode_acquired(batch(0, 1, 2, codec=codec), [(0, 2, 1)]).records) == 3


def test_offsets_that_compaction_removed_are_gaps() -> None:
    data = batch(0, 2, last=3) + batch(6, 7)
    acquired = decode_acquired(data, [(0, 7, 1)])
    assert [record.offset for record, _ in acquired.records] == [0, 2, 6, 7]
    assert acquired.gaps == [1, 3, 4, 5]


def test_control_batches_are_gaps() -> None:
    marker = encode_batch(
        [Record(1, 0, b"\0\0\0\1", b"\0" * 6)], base_offset=1, producer_id=5, transactional=True, control=True
    )
    acquired = decode_acquired(batch(0) + marker + batch(2), [(0, 2, 1)])
    assert [record.offset for record, _ in acquired.records] == [0, 2]
    assert acquired.gaps == [1]


def test_what_did_not_arrive_is_no_gap() -> None:
    """It exists: as a gap it would be finished without having been delivered."""
    acquired = decode_acquired(batch(0, 1) + batch(2, 3)[:-1], [(0, 3, 1)])
    assert [record.offset for record, _ in acquired.records] == [0, 1]
    assert acquired.unreadable == [2, 3]
    assert decode_acquired(b"", [(4, 5, 1)]).unreadable == [4, 5]


def test_damaged_batches_are_unreadable() -> None:
    damaged = bytearray(batch(2, 3))
    damaged[-1] ^= 1
    acquired = decode_acquired(bytes(damaged) + batch(4), [(2, 4, 1)])
    assert acquired.unreadable == [2, 3, 4]
    assert "CRC" in acquired.fault


def test_an_absurd_range_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(MalformedMessage, match=str(OFFSETS_MAX)):
        decode_acquired(b"", [(0, 1 << 60, 1)])
