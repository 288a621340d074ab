"""Encode Arrow batches to record batches by partition, without per-row Python."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.base.ids import TopicPartition
from millpond.base.ports import Buffer
from millpond.columns.errors import RowError
from millpond.remote.cluster import Cluster
from millpond.wire import kernel

GATHERED_BYTES: Final = 4 << 20
"""Arrow batches are joined up to this size, so that each partition gets large record batches out of them."""

BLOCK_ROWS: Final = 1_000
"""Rows without a key that go to one partition before the next."""

_NO_KEY: Final = -1
_RADIX_MAX: Final = 1 << 15
"""numpy sorts integers of 16 bits without comparing them."""


KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
TIMESTAMP: Final = "timestamp"


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns read from each row. Others are ignored, as in Spark's sink."""

    topic: str | None
    """The topic of all rows; None if a column has it."""
    columns: frozenset[str]

    def has(self, column: str) -> bool:
        return column in self.columns


class Encoded(NamedTuple):
    """What `BatchWriter.append` takes."""

    partition: TopicPartition
    payload: Buffer
    rows: int
    base_timestamp: int
    max_timestamp: int


class RowEncoder:
    """Chooses a partition for each row and encodes the rows of a partition together.

    `turn` is the first partition for rows without a key, so that small batches do not all begin at partition 0.
    """

    def __init__(
        self,
        cluster: Cluster,
        shape: Shape,
        *,
        batch_bytes: int,
        record_bytes_max: int | None = None,
        first_partition: int = 0,
    ) -> None:
        self._cluster = cluster
        self._shape = shape
        self._batch_bytes = min(batch_bytes, record_bytes_max or batch_bytes)
        self._record_bytes_max = record_bytes_max
        self._first_partition = first_partition
        self._keyless_rows = 0
        self._partition_counts: dict[str, int] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[Encoded]:
        """The rows of one Arrow batch, in their order within each partition."""
        if self._shape.topic is not None:
            yield from self._encode_for(self._shape.topic, batch)
            return
        topics = batch.column(TOPIC)
        if topics.null_count:
            raise RowError(
                f"{topics.null_count} rows have a null in the column {TOPIC}: give each a topic, filter them out, or "
                f"use option {TOPIC}"
            )
        named = pc.dictionary_encode(topics)
        for number, topic in enumerate(named.dictionary.to_pylist()):
            rows = np.flatnonzero(named.indices.to_numpy() == number)
            yield from self._encode_for(topic, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)))

    def _encode_for(self, topic: str, batch: pa.RecordBatch) -> Iterator[Encoded]:
        if not batch.num_rows:
            return
        rows = _row_columns(batch, self._shape)
        now_ms = time.time_ns() // 1_000_000
        for partition, selection in _by_partition(self._partitions(topic, batch, rows)):
            at = 0
            while at < len(selection):
                encoded = kernel.encode_rows(rows, selection.data, at, self._batch_bytes, now_ms)
                self._check_size(topic, len(encoded.payload))
                at += encoded.taken
                yield Encoded(
                    TopicPartition(topic, partition),
                    encoded.payload,
                    encoded.taken,
                    encoded.base_timestamp,
                    encoded.max_timestamp,
                )

    def _partitions(self, topic: str, batch: pa.RecordBatch, rows: kernel.RowColumns) -> np.ndarray[Any, Any]:
        """The partition of each row: from its column, else by key, else round robin."""
        count = self._count_partitions(topic)
        if rows.key is None:
            chosen = np.full(batch.num_rows, _NO_KEY, np.int32)
        else:
            chosen = np.frombuffer(kernel.key_partitions(rows.key, batch.num_rows, count), np.int32)
        if self._shape.has(PARTITION):
            requested = batch.column(PARTITION)
            numbers = requested.fill_null(0).to_numpy(zero_copy_only=False)
            chosen = np.where(requested.is_valid().to_numpy(zero_copy_only=False), numbers, chosen)
            # A null key has -1, so check requested partitions separately.
            wrong = numbers[(numbers < 0) | (numbers >= count)]
            if len(wrong):
                raise RowError(f"topic {topic!r} has partitions 0 to {count - 1}; a row asks for {wrong[0]}")
        keyless = np.flatnonzero(chosen == _NO_KEY)
        if len(keyless):
            numbers = np.arange(self._keyless_rows, self._keyless_rows + len(keyless))
            chosen = chosen.copy()
            chosen[keyless] = (self._first_partition + numbers // BLOCK_ROWS) % count
            self._keyless_rows += len(keyless)
        return chosen

    def _count_partitions(self, topic: str) -> int:
        count = self._partition_counts.get(topic)
        if count is None:
            info = self._cluster.topics([topic], create=True).get(topic)
            if info is None or not info.partitions:
                raise RowError(
                    f"there is no topic {topic!r} and the cluster does not create it by itself; create it first: "
                    f"millpond topic create {topic}"
                )
            count = self._partition_counts[topic] = len(info.partitions)
        return count

    def _check_size(self, topic: str, size: int) -> None:
        if self._record_bytes_max is not None and size > self._record_bytes_max:
            raise RowError(
                f"a row for topic {topic!r} is a record of {size} bytes; kafka.max.request.size allows "
                f"{self._record_bytes_max}"
            )


def gather(batches: Iterable[pa.RecordBatch], size: int = GATHERED_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows in fewer, larger, non-empty batches."""
    batches_held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            batches_held.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= size:
            yield _joined(batches_held)
            batches_held, held_bytes = [], 0
    if batches_held:
        yield _joined(batches_held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _by_partition(partitions: np.ndarray[Any, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """The row numbers of each partition, ascending."""
    highest = int(partitions.max())
    if highest == 0:
        yield 0, np.arange(len(partitions), dtype=np.int32)
        return
    sortable = partitions.astype(np.int16) if highest < _RADIX_MAX else partitions
    order = np.argsort(sortable, kind="stable").astype(np.int32)
    counts = np.bincount(partitions, minlength=highest + 1)
    ends = np.cumsum(counts)
    for partition in np.flatnonzero(counts):
        yield int(partition), order[ends[partition] - counts[partition] : ends[partition]]


def _row_columns(batch: pa.RecordBatch, shape: Shape) -> kernel.RowColumns:
    return kernel.RowColumns(
        batch.num_rows,
        _binary(batch.column(KEY)) if shape.has(KEY) else None,
        _binary(batch.column(VALUE)),
        _headers(batch.column(HEADERS)) if shape.has(HEADERS) else None,
        _timestamps(batch.column(TIMESTAMP)) if shape.has(TIMESTAMP) else None,
    )


def _binary(column: pa.Array) -> kernel.BinaryColumn:
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    return kernel.BinaryColumn(column.offset, offsets, data, validity)


def _headers(column: pa.Array) -> kernel.HeaderColumn:
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    validity, offsets = column.buffers()[:2]
    pairs = column.values
    if pairs.null_count:
        raise RowError(f"column {HEADERS} has a null among its headers: leave it out instead")
    # `field` keeps the slice of the struct, `flatten` would too but copies.
    return kernel.HeaderColumn(column.offset, offsets, validity, _binary(pairs.field(0)), _binary(pairs.field(1)))


def _timestamps(column: pa.Array) -> kernel.TimestampColumn:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    validity, data = column.buffers()
    return kernel.TimestampColumn(column.offset, data, validity)
