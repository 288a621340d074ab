"""Rows of columns into records, compiled and plain: what goes in comes out of the batch again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.wire.kernel import rows as plain
from millpond.wire.kernel.rows import BinaryColumn, HeaderColumn, RowColumns, TimestampColumn
from millpond.wire.partitioner import partition_for_key
from millpond.wire.records import Record, decode_batch, wrap_payload
from support.twins import compiled, needs

fast = compiled("_rows")
needs_fast = needs(fast)
NOW = 1_700_000_000_000


def bits(flags: Sequence[bool]) -> bytes:
    return bytes(
        sum(flag << index for index, flag in enumerate(flags[at : at + 8])) for at in range(0, len(flags), 8)
    )


def binary(fields: Sequence[bytes | None], start: int = 0) -> BinaryColumn:
    """The fields from entry `start` on, with something else before them."""
    entries = [b"before"] * start + list(fields)
    offsets = array("i", accumulate((len(entry or b"") for entry in entries), initial=0))
    validity = bits([entry is not None for entry in entries]) if None in entries else None
    return BinaryColumn(start, offsets.tobytes(), b"".join(entry or b"" for entry in entries), validity)


def headers_column(
    rows: Sequence[tuple[tuple[str, bytes | None], ...] | None], start: int = 0, names_start: int = 0
) -> HeaderColumn:
    lists = [(("before", b""),)] * start + list(rows)
    pairs = [pair for headers in lists for pair in headers or ()]
    return HeaderColumn(
        start,
        array("i", accumulate((len(headers or ()) for headers in lists), initial=0)).tobytes(),
        bits([headers is not None for headers in lists]),
        binary([name.encode() for name, _ in pairs], names_start),
        binary([value for _, value in pairs], 0),
    )


def times(values: Sequence[int | None], start: int = 0) -> TimestampColumn:
    entries = [7] * start + list(values)
    data = array("q", [entry or 0 for entry in entries]).tobytes()
    return TimestampColumn(start, data, bits([entry is not None for entry in entries]))


def selection(*rows: int) -> bytes:
    return array("i", rows).tobytes()


def batches_of(kernel: Any, rows: RowColumns, chosen: bytes, bytes_max: int) -> list[list[Record]]:
    """The records of one batch after another until all that was chosen is taken."""
    found, at = [], 0
    while at < len(chosen) // 4:
        encoded = kernel.encode_rows(rows, chosen, at, bytes_max, NOW)
        assert encoded.taken == 1 or len(encoded.payload) <= bytes_max
        sealed = wrap_payload(encoded.payload, encoded.taken, encoded.base_timestamp, encoded.max_timestamp)
        found.append(decode_batch(sealed))
        assert encoded.base_timestamp == found[-1][0].timestamp
        assert encoded.max_timestamp == max(record.timestamp for record in found[-1])
        at += encoded.taken
    return found


def test_rows_come_out_in_the_order_of_the_selection(kernel: Any) -> None:
    rows = RowColumns(
        3,
        binary([b"a", None, b""]),
        binary([b"1", b"v" * 300, None], start=2),
        headers_column([(("h", b"1"), ("ü", None)), None, ()], start=1, names_start=3),
        times([5, None, 3]),
    )
    (found,) = batches_of(kernel, rows, selection(2, 0, 1, 0), 1_000)
    first = Record(0, 5, b"a", b"1", (("h", b"1"), ("ü", None)))
    assert found == [
        Record(0, 3, b"", None),
        first._replace(offset=1),
        Record(2, NOW, None, b"v" * 300),
        first._replace(offset=3),
    ]


def test_columns_that_are_not_there_are_null(kernel: Any) -> None:
    (found,) = batches_of(kernel, RowColumns(2, None, None), selection(0, 1), 1_000)
    assert found == [Record(0, NOW, None, None), Record(1, NOW, None, None)]


def test_a_batch_ends_before_the_limit_but_has_one_row(kernel: Any) -> None:
    rows = RowColumns(5, None, binary([b"v" * 100] * 5))
    one = len(kernel.encode_rows(rows, selection(0), 0, 0, NOW).payload)
    assert [len(found) for found in batches_of(kernel, rows, selection(*range(5)), 0)] == [1] * 5
    assert [len(found) for found in batches_of(kernel, rows, selection(*range(5)), 2 * one - 1)] == [1] * 5
    assert [len(found) for found in batches_of(kernel, rows, selection(*range(5)), 2 * one)] == [2, 2, 1]


def test_selections_and_places_that_cannot_be(kernel: Any) -> None:
    rows = RowColumns(2, None, None)
    for chosen, at in ((b"", 0), (selection(0), 1), (selection(0), -1), (b"\0\0\0\0\0", 0), (selection(2), 0)):
        with pytest.raises(ValueError, match="selected"):
            kernel.encode_rows(rows, chosen, at, 100, NOW)
    with pytest.raises(ValueError, match="row -1 of 2"):
        kernel.encode_rows(rows, selection(0, -1), 0, 100, NOW)


SOUND = binary([b"abc", b"de"])


@pytest.mark.parametrize(
    "column",
    [
        replace(SOUND, offsets=array("i", [0, 3]).tobytes()),  # one offset short
        replace(SOUND, offsets=array("i", [0, 3, 6]).tobytes()),  # past the data
        replace(SOUND, offsets=array("i", [0, 3, 2]).tobytes()),  # descending
        replace(SOUND, offsets=array("i", [-1, 3, 5]).tobytes()),
        replace(SOUND, offsets=None),
        replace(SOUND, data=None),
        replace(SOUND, data=b"abcd"),
        replace(SOUND, validity=b""),
        replace(SOUND, start=1),
        replace(SOUND, start=-1),
        replace(SOUND, start=1 << 40),
    ],
)
def test_columns_that_do_not_hold_what_they_say_are_refused(kernel: Any, column: BinaryColumn) -> None:
    chosen = selection(0, 1)
    for rows in (RowColumns(2, column, None), RowColumns(2, None, column)):
        with pytest.raises(ValueError):
            kernel.encode_rows(rows, chosen, 0, 1_000, NOW)
    with pytest.raises(ValueError):
        kernel.key_partitions(column, 2, 3)
    lists = HeaderColumn(0, array("i", [0, 1, 2]).tobytes(), None, SOUND, SOUND)
    kernel.encode_rows(RowColumns(2, None, None, lists), chosen, 0, 1_000, NOW)
    for faulty in (replace(lists, names=column), replace(lists, values=column)):
        with pytest.raises(ValueError):
            kernel.encode_rows(RowColumns(2, None, None, faulty), chosen, 0, 1_000, NOW)


@pytest.mark.parametrize("offsets", [[0, 1], [0, 1, 3], [0, 2, 1], [-1, 1, 2], [0, 0, -1]])
def test_lists_beyond_their_headers_are_refused(kernel: Any, offsets: list[int]) -> None:
    lists = HeaderColumn(0, array("i", offsets).tobytes(), None, SOUND, SOUND)
    with pytest.raises(ValueError):
        kernel.encode_rows(RowColumns(2, None, None, lists), selection(0, 1), 0, 1_000, NOW)


def test_no_list_reaches_beyond_the_last_one(kernel: Any) -> None:
    lists = HeaderColumn(0, array("i", [0, 2, 1]).tobytes(), None, SOUND, SOUND)
    with pytest.raises(ValueError, match="offsets 0 and 2 in 1"):
        kernel.encode_rows(RowColumns(2, None, None, lists), selection(0), 0, 1_000, NOW)


def test_a_header_has_a_name(kernel: Any) -> None:
    lists = HeaderColumn(0, array("i", [0, 0, 1]).tobytes(), None, binary([None]), binary([b"v"]))
    rows = RowColumns(2, None, None, lists)
    kernel.encode_rows(rows, selection(0), 0, 1_000, NOW)
    with pytest.raises(ValueError, match="row 1 has a header without a name"):
        kernel.encode_rows(rows, selection(0, 1), 0, 1_000, NOW)


def test_timestamps_that_are_not_there_or_too_far_apart(kernel: Any) -> None:
    for column in (TimestampColumn(0, bytes(15)), TimestampColumn(1, bytes(16)), TimestampColumn(0, bytes(16), b"")):
        with pytest.raises(ValueError):
            kernel.encode_rows(RowColumns(2, None, None, None, column), selection(0), 0, 1_000, NOW)
    latest = (1 << 63) - 1
    rows = RowColumns(3, None, None, None, times([latest, 0, -2]))
    assert batches_of(kernel, rows, selection(0, 1), 1_000)[0][1].timestamp == 0
    for chosen in (selection(0, 2), selection(2, 0)):
        with pytest.raises(OverflowError, match="too far apart"):
            kernel.encode_rows(rows, chosen, 0, 1_000, NOW)


def test_no_partition_is_not_a_number_of_partitions(kernel: Any) -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match="partitions"):
            kernel.key_partitions(SOUND, 2, count)
    with pytest.raises(ValueError):
        kernel.key_partitions(SOUND, -1, 2)
    assert bytes(kernel.key_partitions(BinaryColumn(0, None, None), 0, 2)) == b""


@needs_fast
def test_a_record_longer_than_its_length_can_say_is_refused_before_it_is_written() -> None:
    large = memoryview(bytes(1 << 30))
    column = BinaryColumn(0, array("i", [0, 1 << 30]).tobytes(), large)
    with pytest.raises(OverflowError, match="record of 2147483662 bytes"):
        fast.encode_rows(RowColumns(1, column, column), selection(0), 0, 1_000, NOW)


def test_sliced_arrays_of_pyarrow(kernel: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    keys = pa.array([b"x", b"key", None, b""], pa.binary())[1:]
    values = pa.array(["x", "x", "äö", "z", None])[2:]
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    lists = pa.array([[("no", b"")], [("a", b"1"), ("b", None)], None, []], pa.list_(pair))[1:]

    def column(found: Any) -> BinaryColumn:
        validity, offsets, data = found.buffers()
        return BinaryColumn(found.offset, offsets, data, validity)

    structs = lists.values
    rows = RowColumns(
        3,
        column(keys),
        column(values),
        HeaderColumn(
            lists.offset,
            lists.buffers()[1],
            lists.buffers()[0],
            column(structs.field(0)),
            column(structs.field(1)),
        ),
    )
    (found,) = batches_of(kernel, rows, selection(0, 1, 2), 1_000)
    assert found == [
        Record(0, NOW, b"key", "äö".encode(), (("a", b"1"), ("b", None))),
        Record(1, NOW, None, b"z"),
        Record(2, NOW, b"", None),
    ]
    partitions = array("i", bytes(kernel.key_partitions(column(keys), 3, 5))).tolist()
    assert partitions == [partition_for_key(b"key", 5), -1, partition_for_key(b"", 5)]
    empty = column(pa.array([], pa.binary()))
    assert bytes(kernel.key_partitions(empty, 0, 5)) == b""


FIELDS = st.none() | st.binary(max_size=9) | st.just(b"x" * 200)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=3), FIELDS), max_size=3).map(tuple)
ROWS = st.lists(
    st.tuples(FIELDS, FIELDS, HEADERS, st.none() | st.integers(-(1 << 61), 1 << 61)), min_size=1, max_size=12
)


@given(ROWS, st.integers(0, 9), st.data())
def test_what_goes_in_comes_out_of_the_batches(
    table: list[tuple[Any, Any, Any, Any]], start: int, data: st.DataObject
) -> None:
    keys, values, lists, stamps = zip(*table, strict=True)
    rows = RowColumns(
        len(table), binary(keys, start), binary(values), headers_column(lists, start), times(stamps, start)
    )
    chosen = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=20))
    bytes_max = data.draw(st.sampled_from([0, 40, 500, 1 << 20]))
    for kernel in filter(None, (plain, fast)):
        batches = batches_of(kernel, rows, selection(*chosen), bytes_max)
        found = [(record.key, record.value, record.headers, record.timestamp) for each in batches for record in each]
        assert found == [
            (keys[row], values[row], lists[row] or (), NOW if stamps[row] is None else stamps[row]) for row in chosen
        ]


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20), st.integers(1, 1_000), st.integers(0, 9))
def test_keys_go_where_java_clients_send_them(keys: list[bytes | None], partitions: int, start: int) -> None:
    wanted = [-1 if key is None else partition_for_key(key, partitions) for key in keys]
    for kernel in filter(None, (plain, fast)):
        found = kernel.key_partitions(binary(keys, start), len(keys), partitions)
        assert array("i", bytes(found)).tolist() == wanted


NUMBERS = st.lists(st.integers(-1, 6), max_size=5).map(lambda found: array("i", found).tobytes())
HOSTILE = st.builds(
    BinaryColumn,
    st.integers(-1, 3),
    st.none() | NUMBERS | st.binary(max_size=9),
    st.none() | st.binary(max_size=6),
    st.none() | st.binary(max_size=2),
)


@needs_fast
@given(st.integers(-1, 4), HOSTILE, HOSTILE, st.data())
def test_twins_agree_on_columns_that_lie(
    count: int, first: BinaryColumn, second: BinaryColumn, data: st.DataObject
) -> None:
    lists = HeaderColumn(data.draw(st.integers(-1, 2)), data.draw(st.none() | NUMBERS), None, first, second)
    stamps = data.draw(st.none() | st.builds(TimestampColumn, st.integers(-1, 2), st.binary(max_size=40)))
    rows = RowColumns(count, first, second, data.draw(st.sampled_from([None, lists])), stamps)
    chosen = selection(*data.draw(st.lists(st.integers(-1, 4), max_size=4)))

    def outcome(kernel: Any) -> list[object]:
        found: list[object] = []
        for attempt in (
            lambda: kernel.encode_rows(rows, chosen, 0, 1_000, NOW),
            lambda: bytes(kernel.key_partitions(first, count, 7)),
        ):
            try:
                found.append(attempt())
            except (ValueError, OverflowError) as error:
                found.append(type(error))
        return found

    assert outcome(fast) == outcome(plain)
