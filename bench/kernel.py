"""`python -m bench.kernel`: rows a second between records and columns, on one core, without any node.

Values of 100 bytes, keys of 8 to 12, in batches of about a megabyte. Processor time, the best of some rounds.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from rich.console import Console
from rich.table import Table

from millpond.wire import kernel
from millpond.wire.batch import HEADER_BYTES
from millpond.wire.kernel import columns, rows
from millpond.wire.kernel.columns import BinaryBuffers, ColumnBuilder
from millpond.wire.kernel.rows import BinaryColumn, HeaderColumn, RowColumns
from millpond.wire.records import Record, encode_batch, wrap_payload

BATCH_ROWS = 8_000
BATCHES = 10
ROWS = BATCH_ROWS * BATCHES
BATCH_BYTES = 1 << 20
PARTITIONS = 12
ROUNDS = 40
PLAIN_ROUNDS = 2
NOW_MS = 1_700_000_000_000
HEADERS = (("trace", b"0123456789abcdef"),)


@dataclass(frozen=True)
class Sample:
    """The same rows as records and as columns."""

    payload: bytes
    table: RowColumns

    @classmethod
    def make(cls, headers: tuple[tuple[str, bytes], ...]) -> Sample:
        records = [
            Record(offset, NOW_MS + offset // 10, b"order-%d" % (offset * 7919), b"v" * 100, headers)
            for offset in range(BATCH_ROWS)
        ]
        payload = encode_batch(records)[HEADER_BYTES:]
        builder = kernel.ColumnBuilder(True)
        fill(builder, payload)
        found = builder.take()
        assert found.headers is not None
        lists = HeaderColumn(
            0,
            found.headers.list_offsets,
            found.headers.list_validity,
            column_of(found.headers.names),
            column_of(found.headers.values),
        )
        return cls(
            payload, RowColumns(ROWS, column_of(found.key), column_of(found.value), lists if headers else None)
        )


def column_of(found: BinaryBuffers) -> BinaryColumn:
    return BinaryColumn(0, found.offsets, found.data, found.validity)


def fill(builder: ColumnBuilder, payload: bytes) -> None:
    for number in range(BATCHES):
        builder.add(payload, BATCH_ROWS, number * BATCH_ROWS, NOW_MS, None, 0, 1 << 60)


def decode(twin: ModuleType, sample: Sample, with_headers: bool) -> Callable[[], None]:
    builder = twin.ColumnBuilder(with_headers)

    def run() -> None:
        fill(builder, sample.payload)
        builder.take()

    return run


def encode(twin: ModuleType, sample: Sample, wraps: bool) -> Callable[[], None]:
    selection = array("i", range(ROWS)).tobytes()

    def run() -> None:
        at = 0
        while at < ROWS:
            found = twin.encode_rows(sample.table, selection, at, BATCH_BYTES, NOW_MS)
            at += found.taken
            if wraps:
                wrap_payload(found.payload, found.taken, found.base_timestamp, found.max_timestamp)

    return run


def choose(twin: ModuleType, sample: Sample) -> Callable[[], None]:
    key = sample.table.key
    assert key is not None
    return lambda: twin.key_partitions(key, ROWS, PARTITIONS)


def million_rows_per_s(run: Callable[[], None], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return ROWS / best / 1e6


def main() -> None:
    bare, headed = Sample.make(()), Sample.make(HEADERS)
    table = Table("what", "compiled, M rows/s", "plain, M rows/s")

    def line(what: str, make: Callable[[ModuleType], Callable[[], None]], twin: ModuleType) -> None:
        chosen = million_rows_per_s(make(kernel), ROUNDS) if kernel.COMPILED else None
        plain = million_rows_per_s(make(twin), PLAIN_ROUNDS)
        table.add_row(what, "not built" if chosen is None else f"{chosen:.1f}", f"{plain:.2f}")

    line("decode into columns", lambda twin: decode(twin, bare, False), columns)
    line("decode, a header each", lambda twin: decode(twin, headed, True), columns)
    line("encode from columns", lambda twin: encode(twin, bare, False), rows)
    line("encode, a header each", lambda twin: encode(twin, headed, False), rows)
    line("encode and wrap (CRC)", lambda twin: encode(twin, bare, True), rows)
    line("partitions of keys", lambda twin: choose(twin, bare), rows)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
