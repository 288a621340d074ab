"""Records into columns, compiled and plain: the same buffers, the same refusals, and nothing half done."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.wire import batch
from millpond.wire.kernel import columns as plain
from millpond.wire.kernel.plain import decode_records
from millpond.wire.records import Record, encode_batch
from support.twins import compiled

fast = compiled("_columns")

INT64_MAX = (1 << 63) - 1
ALWAYS = (0, INT64_MAX)


RECORDS = [
    Record(100, 5_000, b"a", b"first", (("h", b"1"), ("ü", None))),
    Record(101, 4_000, None, b""),
    Record(250, 5_001, b"", None, (("", b""),)),
    Record(100_000, 1 << 50, b"k" * 300, b"v" * 70_000, ()),
]


def payload_of(records: list[Record] = RECORDS, base_offset: int = 100) -> bytes:
    return encode_batch(records, base_offset=base_offset)[batch.HEADER_BYTES :]


def numbers(code: str, buffer: Any) -> list[int]:
    return array(code, bytes(buffer)).tolist()


def entries(column: Any, count: int) -> list[bytes | None]:
    """What a reader of Arrow's layout finds in the column."""
    offsets, data = numbers("i", column.offsets), bytes(column.data)
    assert len(offsets) == count + 1
    assert (offsets[0], offsets[-1]) == (0, len(data))
    found: list[bytes | None] = []
    for row in range(count):
        is_valid = column.validity is None or column.validity[row >> 3] >> (row & 7) & 1
        found.append(data[offsets[row] : offsets[row + 1]] if is_valid else None)
    assert column.null_count == found.count(None)
    assert (column.validity is None) == (column.null_count == 0)
    return found


def headers_of(columns: Any) -> list[tuple[tuple[str, bytes | None], ...] | None]:
    headers = columns.headers
    names = entries(headers.names, headers.count)
    values = entries(headers.values, headers.count)
    offsets = numbers("i", headers.list_offsets)
    pairs = [(name.decode(), value) for name, value in zip(names, values, strict=True) if name is not None]
    found: list[tuple[tuple[str, bytes | None], ...] | None] = []
    for row in range(columns.rows):
        is_valid = headers.list_validity is None or headers.list_validity[row >> 3] >> (row & 7) & 1
        found.append(tuple(pairs[offsets[row] : offsets[row + 1]]) if is_valid else None)
    assert headers.list_null_count == found.count(None)
    return found


def rows_of(columns: Any) -> list[tuple[Any, ...]]:
    """(offset, microseconds, timestamp type, key, value, headers) of every row."""
    headers = headers_of(columns) if columns.headers is not None else [None] * columns.rows
    return list(
        zip(
            numbers("q", columns.offsets),
            numbers("q", columns.timestamps),
            numbers("i", columns.timestamp_types),
            entries(columns.key, columns.rows),
            entries(columns.value, columns.rows),
            headers,
            strict=True,
        )
    )


def expected(records: list[Record], *, appended: bool = False) -> list[tuple[Any, ...]]:
    return [
        (offset, time * 1_000, int(appended), key, value, headers or None)
        for offset, time, key, value, headers in records
    ]


def test_every_field_is_in_its_column(kernel: Any) -> None:
    builder = kernel.ColumnBuilder(True)
    assert builder.add(memoryview(payload_of()), 4, 100, 5_000, None, *ALWAYS) == 4
    assert builder.rows == 4
    assert builder.data_bytes == 301 + 70_005 + len("hü".encode()) + 1
    assert rows_of(builder.take()) == expected(RECORDS)


def test_headers_are_left_out_unless_asked_for(kernel: Any) -> None:
    builder = kernel.ColumnBuilder()
    builder.add(payload_of(), 4, 100, 5_000, None, *ALWAYS)
    assert builder.data_bytes == 301 + 70_005
    found = builder.take()
    assert found.headers is None
    assert [row[:5] for row in rows_of(found)] == [row[:5] for row in expected(RECORDS)]


def test_only_offsets_from_first_to_before_end_are_taken(kernel: Any) -> None:
    builder = kernel.ColumnBuilder(True)
    assert builder.add(payload_of(), 4, 100, 5_000, None, 101, 100_000) == 2
    assert builder.add(payload_of(), 4, 100, 5_000, None, 102, 250) == 0
    assert rows_of(builder.take()) == expected(RECORDS[1:3])


def test_with_an_append_time_all_records_have_it(kernel: Any) -> None:
    builder = kernel.ColumnBuilder(True)
    builder.add(payload_of(RECORDS[:3]), 3, 100, 5_000, 77, *ALWAYS)
    builder.add(payload_of(RECORDS[:3]), 3, 100, 5_000, None, *ALWAYS)
    appended = [record._replace(timestamp=77) for record in RECORDS[:3]]
    assert rows_of(builder.take()) == expected(appended, appended=True) + expected(RECORDS[:3])


def test_no_timestamp_is_a_millisecond_before_1970(kernel: Any) -> None:
    builder = kernel.ColumnBuilder()
    builder.add(payload_of([Record(0, -1, None, None)], 0), 1, 0, -1, None, *ALWAYS)
    assert numbers("q", builder.take().timestamps) == [-1_000]


def test_nothing_at_all_is_no_row(kernel: Any) -> None:
    builder = kernel.ColumnBuilder(True)
    assert builder.add(b"", 0, 0, 0, None, *ALWAYS) == 0
    found = builder.take()
    assert found.rows == 0
    assert rows_of(found) == []
    assert numbers("i", found.headers.list_offsets) == [0]


def many(count: int) -> list[Record]:
    return [
        Record(
            number,
            number % 50,
            None if number % 3 == 0 else b"k%d" % number,
            None if number % 7 == 0 else b"v" * (number % 40),
            tuple((f"h{index}", None if index % 2 else b"x") for index in range(number % 4)),
        )
        for number in range(count)
    ]


def test_columns_grow_over_many_batches_and_begin_again(kernel: Any) -> None:
    builder = kernel.ColumnBuilder(True)
    records = many(9_000)
    for _ in range(2):
        for start in range(0, len(records), 900):
            part = records[start : start + 900]
            assert builder.add(payload_of(part, start), 900, start, part[0].timestamp, None, *ALWAYS) == 900
        assert builder.rows == 9_000
        assert rows_of(builder.take()) == expected(records)
        assert (builder.rows, builder.data_bytes) == (0, 0)


def test_one_null_before_many_values(kernel: Any) -> None:
    records = [Record(0, 0, None, b"")] + [Record(offset, 0, b"k", b"") for offset in range(1, 9_000)]
    builder = kernel.ColumnBuilder()
    builder.add(payload_of(records, 0), 9_000, 0, 0, None, *ALWAYS)
    found = builder.take()
    assert len(found.key.validity) == 9_000 // 8
    assert entries(found.key, 9_000) == [None] + [b"k"] * 8_999


def test_what_was_taken_is_read_only_and_stays(kernel: Any) -> None:
    builder = kernel.ColumnBuilder(True)
    builder.add(payload_of(), 4, 100, 5_000, None, *ALWAYS)
    first = builder.take()
    builder.add(payload_of(many(300), 0), 300, 0, 0, None, *ALWAYS)
    second = builder.take()
    del builder
    assert rows_of(first) == expected(RECORDS)
    assert rows_of(second) == expected(many(300))
    assert memoryview(first.value.data).readonly


def test_pyarrow_takes_the_buffers(kernel: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    builder = kernel.ColumnBuilder(True)
    builder.add(payload_of(), 4, 100, 5_000, None, *ALWAYS)
    found = builder.take()

    def held(buffer: Any) -> Any:
        return None if buffer is None else pa.py_buffer(buffer)

    def binary(column: Any, kind: Any, count: int) -> Any:
        buffers = [held(column.validity), held(column.offsets), held(column.data)]
        return pa.Array.from_buffers(kind, count, buffers, column.null_count)

    headers = found.headers
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    pairs = pa.Array.from_buffers(
        pair,
        headers.count,
        [None],
        children=[
            binary(headers.names, pa.string(), headers.count),
            binary(headers.values, pa.binary(), headers.count),
        ],
    )
    lists = pa.Array.from_buffers(
        pa.list_(pair), 4, [held(headers.list_validity), held(headers.list_offsets)], children=[pairs]
    )
    times = pa.Array.from_buffers(pa.timestamp("us", "UTC"), 4, [None, held(found.timestamps)])
    table = pa.RecordBatch.from_arrays(
        [binary(found.key, pa.binary(), 4), binary(found.value, pa.binary(), 4), lists, times],
        ["key", "value", "headers", "timestamp"],
    )
    table.validate(full=True)
    del builder, found, headers
    assert table["key"].to_pylist() == [record.key for record in RECORDS]
    assert table["value"].to_pylist() == [record.value for record in RECORDS]
    assert table["headers"].to_pylist() == [
        [{"key": name, "value": value} for name, value in record.headers] or None for record in RECORDS
    ]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [record.timestamp * 1_000 for record in RECORDS]


def one_record(body: bytes) -> bytes:
    return bytes([len(body) * 2]) + body


def test_half_a_payload_leaves_the_builder_as_it_was(kernel: Any) -> None:
    nulls = [Record(offset, 0, None, None, (("n", None),) if offset % 2 else ()) for offset in range(40)]
    good = payload_of(many(21), 0)
    builder = kernel.ColumnBuilder(True)
    for fault in (b"\x00", one_record(b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"), good[:-1]):
        builder.add(good, 21, 0, 0, None, *ALWAYS)
        size = builder.data_bytes
        with pytest.raises(MalformedMessage):
            builder.add(payload_of(nulls, 0) + fault, 41, 0, 0, None, *ALWAYS)
        assert (builder.rows, builder.data_bytes) == (21, size)
        builder.add(good, 21, 0, 0, None, *ALWAYS)
        assert rows_of(builder.take()) == expected(many(21)) * 2


@pytest.mark.parametrize(
    ("limit", "record"),
    [
        (2, Record(0, 0, b"xyz", None)),
        (2, Record(0, 0, None, b"xyz")),
        (2, Record(0, 0, None, None, (("xyz", None),))),
        (2, Record(0, 0, None, None, (("", b"xyz"),))),
        (2, Record(0, 0, None, None, (("", None), ("", None), ("", None)))),
        (0, Record(0, 0, None, None)),
    ],
)
def test_a_column_that_would_be_too_large_is_refused(kernel: Any, limit: int, record: Record) -> None:
    builder = kernel.ColumnBuilder(True, limit)
    with pytest.raises(OverflowError, match=r"take\(\)"):
        builder.add(payload_of([record], 0), 1, 0, 0, None, *ALWAYS)
    assert builder.rows == 0
    assert rows_of(builder.take()) == []


def test_a_column_may_be_filled_to_its_limit_again_and_again(kernel: Any) -> None:
    builder = kernel.ColumnBuilder(True, 6)
    payload = payload_of([Record(0, 0, b"abc", b"def", (("gh", b"ijk"),))], 0)
    for _ in range(3):
        for _ in range(2):
            builder.add(payload, 1, 0, 0, None, *ALWAYS)
        with pytest.raises(OverflowError):
            builder.add(payload, 1, 0, 0, None, *ALWAYS)
        # What is not wanted needs no room.
        assert builder.add(payload, 1, 0, 0, None, 1, 9) == 0
        assert builder.take().rows == 2


def test_no_limit_beyond_32_bits(kernel: Any) -> None:
    for limit in (-1, 1 << 31):
        with pytest.raises(ValueError, match="offsets"):
            kernel.ColumnBuilder(True, limit)


def test_timestamps_must_fit_as_microseconds(kernel: Any) -> None:
    latest = INT64_MAX // 1_000
    builder = kernel.ColumnBuilder()
    payload = payload_of([Record(0, 0, None, None)], 0)
    for sign in (1, -1):
        builder.add(payload, 1, 0, sign * latest, None, *ALWAYS)
        builder.add(payload, 1, 0, 0, sign * latest, *ALWAYS)
        with pytest.raises(MalformedMessage, match="microseconds"):
            builder.add(payload, 1, 0, sign * (latest + 1), None, *ALWAYS)
        with pytest.raises(MalformedMessage, match="microseconds"):
            builder.add(payload, 1, 0, 0, sign * (latest + 1), *ALWAYS)
        assert builder.add(payload, 1, 0, sign * (latest + 1), None, 1, 2) == 0
    assert numbers("q", builder.take().timestamps) == [latest * 1_000] * 2 + [-latest * 1_000] * 2


def outcome(kernel: Any, with_headers: bool, *arguments: object) -> object:
    """The rows, or which kind of refusal; after a refusal the builder must be empty."""
    builder = kernel.ColumnBuilder(with_headers)
    try:
        builder.add(*arguments)
    except MalformedMessage:
        assert (builder.rows, builder.data_bytes) == (0, 0)
        assert rows_of(builder.take()) == []
        return MalformedMessage
    return rows_of(builder.take())


def decoded(payload: bytes | bytearray, count: int, base: int, first: int, end: int) -> object:
    """What `decode_records` makes of the same payload."""
    try:
        records = [Record(*fields) for fields in decode_records(payload, count, base, base)]
    except MalformedMessage:
        return MalformedMessage
    wanted = [record for record in records if first <= record.offset < end]
    if any(abs(record.timestamp) > INT64_MAX // 1_000 for record in wanted):
        return MalformedMessage
    return expected(wanted)


SMALL = payload_of(RECORDS[:3])


@given(st.data())
def test_both_twins_find_and_refuse_what_decode_records_does(data: st.DataObject) -> None:
    payload = bytearray(SMALL)
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)) | st.just(len(payload)))]
    count = data.draw(st.integers(0, 4) | st.just(3))
    base = data.draw(st.sampled_from([0, 100, INT64_MAX - 200]))
    first = data.draw(st.sampled_from([0, base, base + 1]))
    end = data.draw(st.sampled_from([base, base + 2, INT64_MAX]))
    wanted = decoded(payload, count, base, first, end)
    for kernel in filter(None, (plain, fast)):
        assert outcome(kernel, True, payload, count, base, base, None, first, end) == wanted
        without = outcome(kernel, False, payload, count, base, base, None, first, end)
        assert (without is MalformedMessage) == (wanted is MalformedMessage)


@given(st.binary(max_size=60), st.integers(0, 9))
def test_random_bytes_do_no_harm(payload: bytes, count: int) -> None:
    for kernel in filter(None, (plain, fast)):
        assert outcome(kernel, True, payload, count, 0, 0, None, *ALWAYS) == decoded(payload, count, 0, *ALWAYS)


EDGES = ["\ud7ff", "\ue000", "\U0010ffff", "\u0800", "\U00010000", "\x80", "é"]


@given(
    st.binary(min_size=1, max_size=6)
    | st.lists(st.sampled_from(EDGES), max_size=3).map(lambda parts: "".join(parts).encode())
    | st.sampled_from(
        [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xc3"]
    )
)
def test_header_names_are_read_as_python_reads_them(name: bytes) -> None:
    payload = one_record(b"\x00\x00\x00\x01\x01\x02" + bytes([len(name) * 2]) + name + b"\x01")
    for kernel in filter(None, (plain, fast)):
        assert outcome(kernel, True, payload, 1, 0, 0, None, *ALWAYS) == decoded(payload, 1, 0, *ALWAYS)
        assert outcome(kernel, False, payload, 1, 0, 0, None, *ALWAYS) is not MalformedMessage


@pytest.mark.parametrize("asked_plain", ["", "1"])
def test_the_environment_chooses_the_twin_and_a_node_loads_neither(asked_plain: str) -> None:
    program = """if True:
        import sys
        from millpond.wire import kernel, records
        print(any(name.endswith(("columns", "rows")) for name in sys.modules))
        print(kernel.ColumnBuilder.__module__, kernel.encode_rows.__module__, kernel.key_partitions.__module__)
        from millpond.wire.kernel import *
        print(BinaryColumn.__module__, Columns.__module__, hasattr(kernel, "unheard_of"))
    """
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MILLPOND_PLAIN": asked_plain},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    room = "millpond.wire.kernel."
    mark = "_" if fast is not None and not asked_plain else ""
    assert answer == [
        "False",
        *(f"{room}{mark}{name}" for name in ("columns", "rows", "rows")),
        *(f"{room}{name}" for name in ("rows", "columns")),
        "False",
    ]
