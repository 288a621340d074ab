"""The rows of a query as a table, lines of JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import click

from millpond.cli.errors import Failed, cause
from millpond.cli.terminal import print_table
from millpond.cli.text import counted, safe

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("table", "json", "csv", "parquet")
CELL_CHARACTERS_MAX: Final = 200
ROWS_PER_PIECE: Final = 1_000


def write_rows(rows: pa.RecordBatchReader, format: str, path: str | None, rows_max: int) -> int:
    """Write all rows, or in a table the first ones; returns their number."""
    rows = _with_distinct_names(rows)
    if format == "parquet":
        assert path is not None
        return _in_file(path, "wb", lambda file: _parquet(rows, file))
    if format == "table":
        return _table(rows, rows_max)
    write = _json if format == "json" else _csv
    if path is None:
        return write(rows, sys.stdout)
    return _in_file(path, "w", lambda file: write(rows, file))


def _with_distinct_names(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """A join may have two columns of one name: the second one becomes `name_2`."""
    import pyarrow as pa

    names: list[str] = []
    for name in rows.schema.names:
        number = 1
        while (chosen := name if number == 1 else f"{name}_{number}") in names:
            number += 1
        names.append(chosen)
    if names == rows.schema.names:
        return rows
    schema = pa.schema([field.with_name(name) for name, field in zip(names, rows.schema, strict=True)])
    return pa.RecordBatchReader.from_batches(schema, (batch.rename_columns(names) for batch in rows))


def _in_file(path: str, mode: str, write: Callable[[IO[Any]], int]) -> int:
    try:
        text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
        with open(path, mode, **text) as file:  # type: ignore[call-overload]
            return write(file)
    except OSError as fault:
        raise Failed(f"{path} cannot be written: {cause(fault)}.") from None


def _parquet(rows: pa.RecordBatchReader, file: IO[bytes]) -> int:
    from pyarrow.parquet import ParquetWriter

    count = 0
    with ParquetWriter(file, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _json(rows: pa.RecordBatchReader, out: IO[str]) -> int:
    from millpond.columns.json_writer import JsonWriter

    writer = JsonWriter(rows.schema)
    count = 0
    for batch in _pieces(rows):
        lines = writer.write(batch).to_pylist()
        out.write("".join(f"{line}\n" for line in lines))
        count += len(lines)
    return count


def _csv(rows: pa.RecordBatchReader, out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows.schema.names)
    count = 0
    for row in _values(rows):
        writer.writerow(["" if each is None else text_of(each) for each in row])
        count += 1
    return count


def _table(rows: pa.RecordBatchReader, rows_max: int) -> int:
    shown: list[list[Any]] = []
    is_more = False
    for row in _values(rows):
        if len(shown) == rows_max:
            is_more = True
            break
        shown.append(row)
    names = list(rows.schema.names)
    columns = [
        _cells([row[number] for row in shown], _is_number(field.type)) for number, field in enumerate(rows.schema)
    ]
    if names:
        print_table(names, list(zip(*columns, strict=True)), words=len(names))
    if is_more:
        click.echo(f"The first {counted(rows_max, 'row')}: --rows shows more, --format csv all.", err=True)
    return len(shown)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cells(values: list[Any], is_number: bool) -> list[str]:
    """A column of a table: numbers to the right."""
    texts = ["–" if each is None else _shortened(safe(text_of(each), in_line=True)) for each in values]
    width = max(map(len, texts), default=0)
    return [each.rjust(width) for each in texts] if is_number else texts


def _shortened(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"


def text_of(value: Any) -> str:
    """A value of JSON as text for people: without quotes if it is text itself."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _values(rows: pa.RecordBatchReader) -> Iterator[list[Any]]:
    """Each row as values of JSON."""
    from millpond.columns.json_writer import JsonWriter

    schema = rows.schema
    writer = JsonWriter(schema)
    for batch in _pieces(rows):
        for line in writer.write(batch).to_pylist():
            yield list(json.loads(line).values())


def _pieces(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for first in range(0, batch.num_rows, ROWS_PER_PIECE):
            yield batch.slice(first, ROWS_PER_PIECE)
