from __future__ import annotations

import pytest

from millpond.log.markers import Marker, encode_marker, read_marker
from millpond.wire.batch import check_batch
from millpond.wire.records import Record, emptied, encode_batch


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_read_back(committed):
    batch = encode_marker(Marker(committed, 9), producer_id=5, producer_epoch=3, now_ms=77)
    header = check_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, -1)
    assert header.is_control
    assert header.is_transactional
    assert read_marker(batch) == Marker(committed, 9)


def test_the_record_is_kafkas():
    batch = encode_marker(Marker(committed=True, coordinator_epoch=9), 5, 3, 77)
    # length 16, attributes 0, timestamp delta 0, offset delta 0, key of 4: 0 and 1, value of 6: 0 and 9, no headers
    assert bytes(batch[61:]).hex() == "20" + "000000" + "08" + "00000001" + "0c" + "000000000009" + "00"


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\0\0\2", b"\0\0\0\0\0\0"), (b"\0\0", b"\0\0\0\0\0\0"), (b"\0\0\0\1", b"\0"), (None, None)],
)
def test_other_control_records_say_nothing_about_transactions(key, value):
    assert read_marker(encode_batch([Record(0, 1, key, value)], control=True)) is None


def test_an_emptied_or_oversized_batch_says_nothing():
    assert read_marker(emptied(encode_marker(Marker(committed=True, coordinator_epoch=9), 5, 3, 77))) is None
    assert read_marker(encode_batch([Record(0, 1, b"\0\0\0\1", b"\0" * 5000)], control=True)) is None
    assert read_marker(encode_batch([Record(0, 1, b"\0\0\0\1", b"\0" * 6)], control=True)[:-1] + b"\xff") is None
