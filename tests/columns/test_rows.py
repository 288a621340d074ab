"""Arrow rows encoded as records of their partitions, then decoded and compared."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from millpond.columns.errors import RowError
from millpond.columns.rows import BLOCK_ROWS, Encoded, RowEncoder, Shape, gather
from millpond.remote.cluster import Cluster
from millpond.wire import kernel
from millpond.wire.partitioner import partition_for_key

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])


class Topics:
    """The part of a cluster that the encoder uses."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.requests: list[str] = []

    def topics(self, names: list[str], *, create: bool) -> dict[str, Any]:
        assert create, "a producer has missing topics made"
        self.requests += names
        known = {name: self.partitions[name] for name in names if name in self.partitions}
        return {name: SimpleNamespace(partitions=dict.fromkeys(range(count))) for name, count in known.items()}


def encoder(topics: Topics, topic: str | None, *columns: str, **limits: Any) -> RowEncoder:
    shape = Shape(topic, frozenset({"value", *columns}))
    return RowEncoder(cast(Cluster, topics), shape, **{"batch_bytes": 1 << 20, **limits})


def decoded(encoded: Iterable[Encoded]) -> dict[tuple[str, int], list[Any]]:
    """(key, value, headers, timestamp) of each record, by partition."""
    result: dict[tuple[str, int], list[Any]] = {}
    for each in encoded:
        fields = kernel.decode_records(each.payload, each.rows, 0, each.base_timestamp, None)
        assert [field[0] for field in fields] == list(range(each.rows))
        assert each.max_timestamp == max(field[1] for field in fields)
        result.setdefault(tuple(each.partition), []).extend(
            (key, value, headers, at) for _, at, key, value, headers in fields
        )
    return result


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


@pytest.mark.parametrize("large", [False, True])
def test_keys_choose_partitions_as_in_java_and_rows_keep_their_order(large: bool) -> None:
    keys = [f"key {number % 37}" for number in range(500)]
    values = [None if number % 11 == 0 else b"%d" % number for number in range(500)]
    rows = batch(
        key=pa.array(keys, pa.large_string() if large else pa.string()),
        value=pa.array(values, pa.large_binary() if large else pa.binary()),
    )
    # Slices share their buffers with the whole.
    made = encoder(Topics(t=5), "t", "key")
    result = decoded([*made.encode(rows.slice(0, 123)), *made.encode(rows.slice(123))])
    expected: dict[tuple[str, int], list[Any]] = {}
    for key, value in zip(keys, values, strict=True):
        expected.setdefault(("t", partition_for_key(key.encode(), 5)), []).append((key.encode(), value))
    assert {partition: [record[:2] for record in records] for partition, records in result.items()} == expected


def test_rows_without_a_key_are_distributed_in_blocks() -> None:
    made = encoder(Topics(t=3), "t", first_partition=7)
    rows = batch(value=pa.array([b"v"] * (BLOCK_ROWS * 2)))
    counts = {partition: len(records) for partition, records in decoded(made.encode(rows)).items()}
    assert counts == {("t", 1): BLOCK_ROWS, ("t", 2): BLOCK_ROWS}
    assert {partition for partition, _ in decoded(made.encode(rows.slice(0, 5))).items()} == {("t", 0)}


def test_the_partition_column_overrides_the_key() -> None:
    rows = batch(
        key=pa.array(["a", "a", None]),
        value=pa.array([b"1", b"2", b"3"]),
        partition=pa.array([3, None, 1], pa.int32()),
    )
    result = decoded(encoder(Topics(t=4), "t", "key", "partition").encode(rows))
    assert [record[1] for record in result["t", 3]] == [b"1"]
    assert [record[1] for record in result["t", partition_for_key(b"a", 4)]] == [b"2"]
    assert [record[1] for record in result["t", 1]] == [b"3"]


@pytest.mark.parametrize("wrong", [4, -1, -2])
def test_a_missing_partition_is_refused(wrong: int) -> None:
    rows = batch(value=pa.array([b"1", b"2"]), partition=pa.array([0, wrong], pa.int32()))
    with pytest.raises(RowError, match=f"has partitions 0 to 3; a row asks for {wrong}"):
        list(encoder(Topics(t=4), "t", "partition").encode(rows))


def test_the_topic_column_spreads_rows_over_topics() -> None:
    rows = batch(
        value=pa.array([b"%d" % number for number in range(6)]), topic=pa.array(["a", "b", "a", "c", "b", "a"])
    )
    topics = Topics(a=1, b=1, c=1)
    made = encoder(topics, None, "topic")
    result = decoded(made.encode(rows))
    assert {partition: [record[1] for record in records] for partition, records in result.items()} == {
        ("a", 0): [b"0", b"2", b"5"],
        ("b", 0): [b"1", b"4"],
        ("c", 0): [b"3"],
    }
    list(made.encode(rows))
    assert topics.requests == ["a", "b", "c"], "once each"


def test_a_null_or_missing_topic_is_refused() -> None:
    rows = batch(value=pa.array([b"1", b"2"]), topic=pa.array(["a", None]))
    with pytest.raises(RowError, match="1 rows have a null in the column topic"):
        list(encoder(Topics(a=1), None, "topic").encode(rows))
    with pytest.raises(RowError, match=r"no topic .a..*millpond topic create a"):
        list(encoder(Topics(), None, "topic").encode(rows.slice(0, 1)))


def test_headers_and_timestamps_are_written() -> None:
    headers = [None, [], [{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [{"key": "", "value": b""}]]
    rows = batch(
        value=pa.array([b"skipped", *[b"v"] * 4]),
        headers=pa.array([[{"key": "skipped", "value": b""}], *headers], pa.list_(PAIR)),
        timestamp=pa.array([0, 1_700_000_000_123_999, None, 5_000, -1_000], pa.timestamp("us", "UTC")),
    ).slice(1)
    result = decoded(encoder(Topics(t=1), "t", "headers", "timestamp").encode(rows))["t", 0]
    assert [record[2] for record in result] == [(), (), (("a", b"1"), ("a", None)), (("", b""),)]
    assert [result[row][3] for row in (0, 2, 3)] == [1_700_000_000_123, 5, -1]
    assert result[1][3] > 1_700_000_000_123, "no time of its own: the time of writing"


def test_a_null_among_the_headers_is_refused() -> None:
    rows = batch(value=pa.array([b"v"]), headers=pa.array([[None]], pa.list_(PAIR)))
    with pytest.raises(RowError, match="null among its headers"):
        list(encoder(Topics(t=1), "t", "headers").encode(rows))


def test_batches_stay_within_their_size() -> None:
    rows = batch(value=pa.array([b"v" * 100] * 50))
    encoded = list(encoder(Topics(t=1), "t", batch_bytes=1_000).encode(rows))
    assert sum(each.rows for each in encoded) == 50
    assert {each.rows for each in encoded} == {9, 5}
    assert all(len(each.payload) <= 1_000 for each in encoded)


def test_a_record_above_the_limit_is_refused() -> None:
    rows = batch(value=pa.array([b"v" * 100, b"v" * 3_000]))
    with pytest.raises(RowError, match=r"a record of 30\d\d bytes; kafka\.max\.request\.size allows 2000"):
        list(encoder(Topics(t=1), "t", record_bytes_max=2_000).encode(rows))


def test_small_batches_are_gathered() -> None:
    rows = [batch(value=pa.array([b"%d" % number] * (number % 3))) for number in range(30)]
    joined = list(gather(rows, size=100))
    assert 1 < len(joined) < 20
    assert [value for each in joined for value in each.column(0).to_pylist()] == [
        value for each in rows for value in each.column(0).to_pylist()
    ]
    assert list(gather([batch(value=pa.array([], pa.binary()))])) == []
