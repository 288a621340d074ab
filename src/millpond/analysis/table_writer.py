"""`millpond.write_arrow`: the rows of a table as records of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import pyarrow as pa

from millpond.admin.topics import find_topic
from millpond.analysis.cluster_settings import cluster_settings
from millpond.columns.errors import RowError
from millpond.columns.json_writer import JsonWriter
from millpond.columns.rows import HEADERS, KEY, TIMESTAMP, VALUE, RowEncoder, Shape, gather
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ConfigError
from millpond.remote.writer import BatchWriter
from millpond.wire.compression import CODEC_BY_NAME, CODEC_NAMES

ROWS_MAX: Final = 10_000
"""Rows encoded at a time: as Python objects they take many times the memory."""
BATCH_BYTES: Final = 512 << 10
OWN: Final = frozenset({"_topic", "_partition", "_offset", "_timestamp", "_key", "_headers", "_value", "_fault"})
"""Columns of the record that a row was read from: they are not fields of its value."""
_RECORD: Final = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


def write_arrow(
    topic: str,
    table: Any,
    *,
    key: str | None = None,
    value: str | None = None,
    timestamp: str | None = None,
    bootstrap: str | None = None,
    profile: str | None = None,
    client_config: str | None = None,
    settings: Mapping[str, str] | None = None,
    compression: Compression = "zstd",
) -> int:
    """Write each row as a record, and return their number once the cluster has acknowledged all of them.

    `table` is anything that Arrow reads: a table, a reader, a frame of pandas or Polars, a list of dictionaries. The
    value is the row as a JSON object, or the bytes or text of the column `value`. A table as `millpond.arrow` reads
    it is written back as it was: key, value and headers. `key` names the column of keys (text, bytes or whole
    numbers), `timestamp` that of times.

    The producer is idempotent: a repeated request makes no second record. After an error some rows may be written.
    """
    if compression not in CODEC_BY_NAME:
        raise ConfigError(f"compression={compression!r} is none of {', '.join(CODEC_NAMES)}")
    reader = _reader(table)
    records = _Records(reader.schema, key, value, timestamp)
    rows = 0
    with Cluster(cluster_settings(bootstrap, client_config, settings, profile)) as cluster:
        find_topic(cluster, topic)
        encoder = RowEncoder(cluster, Shape(topic, records.columns), batch_bytes=BATCH_BYTES)
        with BatchWriter(cluster, codec=CODEC_BY_NAME[compression]) as writer:
            for batch in gather(records.made(reader)):
                rows += batch.num_rows
                for each in encoder.encode(batch):
                    writer.append(each.partition, each.payload, each.rows, each.base_timestamp, each.max_timestamp)
            writer.flush()
    return rows


class _Records:
    """Makes the columns of records from rows."""

    def __init__(self, schema: pa.Schema, key: str | None, value: str | None, timestamp: str | None) -> None:
        names = schema.names
        if len(set(names)) < len(names):
            raise RowError(f"the table has two columns named {next(each for each in names if names.count(each) > 1)}")
        is_raw = value is None and VALUE in names and set(names) <= _RECORD
        self._key = key or next((each for each in (("key",) if is_raw else ("_key",)) if each in names), None)
        self._headers = next((each for each in (("headers",) if is_raw else ("_headers",)) if each in names), None)
        self._value = VALUE if is_raw else value
        self._timestamp = timestamp
        for each in (self._key, self._value, timestamp):
            if each is not None and each not in names:
                raise RowError(f"there is no column {each}; there are {', '.join(names)}")
        fields = [each for each in schema if each.name not in OWN]
        if self._value is None and not fields:
            raise RowError("the table has no columns to write")
        self._json = JsonWriter(pa.schema(fields)) if self._value is None else None
        optional = {KEY: self._key, HEADERS: self._headers, TIMESTAMP: timestamp}
        self.columns = frozenset({VALUE, *(name for name, own in optional.items() if own is not None)})

    def made(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for first in range(0, batch.num_rows, ROWS_MAX):
                yield self._made(batch.slice(first, ROWS_MAX))

    def _made(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        if self._json is not None:
            columns[VALUE] = self._json.write(rows)
        else:
            assert self._value is not None
            columns[VALUE] = _bytes(rows.column(self._value), self._value)
        if self._key is not None:
            columns[KEY] = _bytes(rows.column(self._key), self._key, numbers=True)
        if self._headers is not None:
            columns[HEADERS] = _cast(rows.column(self._headers), _HEADERS, self._headers)
        if self._timestamp is not None:
            columns[TIMESTAMP] = _milliseconds(rows.column(self._timestamp), self._timestamp)
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _bytes(column: pa.Array, name: str, *, numbers: bool = False) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _bytes(column.dictionary_decode(), name, numbers=numbers)
    if numbers and pa.types.is_integer(kind):
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_null(kind):
        return column.cast(pa.binary())
    if not any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    ):
        expected = "text, bytes or whole numbers" if numbers else "text or bytes"
        raise RowError(f"column {name} is {kind}, and must be {expected}: cast it before the write")
    return _cast(column, pa.binary(), name)


def _milliseconds(column: pa.Array, name: str) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        raise RowError(f"column {name} is {column.type}, and must be a timestamp: cast it before the write")
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False)


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowException as fault:
        raise RowError(f"column {name} cannot be written: {str(fault).splitlines()[0][:200]}") from None


def _reader(table: Any) -> pa.RecordBatchReader:
    if isinstance(table, pa.RecordBatchReader):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(table.schema, [table])
    if isinstance(table, pa.Table):
        return table.to_reader()
    if type(table).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(table, preserve_index=False).to_reader()
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    if isinstance(table, list) and table and all(isinstance(each, dict) for each in table):
        try:
            return pa.Table.from_pylist(table).to_reader()
        except (pa.ArrowException, TypeError) as fault:
            raise RowError(f"the rows have no common type: {str(fault).splitlines()[0][:200]}") from None
    raise ConfigError(
        f"a {type(table).__name__} is no table: give one of Arrow, pandas or Polars, a reader of batches, or a list "
        "of dictionaries"
    )
