"""Values of records into columns: what the compiled `_values.ValueReader` is told, and what it gives.

Here is no plain twin. That is the row by row way of `spark.parsing` (json_rows, avro_rows), which says what a value
means and what is wrong with it: it is asked about every value that the compiled reader refuses, and about all of them
where nothing was compiled.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import Protocol

from millpond.base.ports import Buffer

RUN_BYTES_MAX = 64 << 20
"""What one call reads at most; so no offset of a column can go beyond 32 bits."""
VALUE_BYTES_MAX = 16 << 20
"""Longer values are refused: a small text can need a hundred times its size to be read."""
BRANCHES_MAX = 3


class Kind(IntEnum):
    """What a column holds."""

    STRUCT = 0
    LIST = 1
    MAP = 2
    STRING = 3
    BINARY = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DECIMAL = 12
    DATE = 13
    TIMESTAMP = 14


class Written(IntEnum):
    """How Avro writes what the column holds."""

    NULL = 0
    NUMBER = 1
    FLOAT = 2
    DOUBLE = 3
    BOOLEAN = 4
    BYTES = 5
    FIXED = 6
    ENUM = 7
    BLOCKS = 8
    RECORD = 9


@dataclass(frozen=True, slots=True)
class Shape:
    """One column and those inside: the fields of a struct, the element of a list, the key and the value of a map."""

    kind: Kind
    children: tuple[Shape, ...] = ()
    name: str = ""
    """In JSON, the key of the struct's field."""
    required: bool = False
    """In JSON, whether a struct must have it."""
    precision: int = 0
    scale: int = 0
    """Of a decimal."""
    written: tuple[Written, ...] = ()
    """In Avro: one, or the branches of a union."""
    is_union: bool = False
    factor: int = 1
    """In Avro: from the number that is written to the one that the column holds."""
    size: int = 0
    """Of what Avro calls fixed."""
    symbols: tuple[str, ...] = ()
    """Of an enum of Avro."""


@dataclass(frozen=True, slots=True)
class ValueBuffers:
    """A column in the layout of Arrow: `offsets` for lists, maps, strings and binaries, `data` for what has no
    children. `validity` is None where nothing is null."""

    rows: int
    null_count: int
    validity: Buffer | None
    offsets: Buffer | None
    data: Buffer | None
    children: tuple[ValueBuffers, ...]


class ValueReader(Protocol):
    """Reads many values at once. It takes fewer than its plain twin does, and means the same by those it takes.

    Of several threads one reads at a time.
    """

    def read(
        self, count: int, start: int, validity: Buffer | None, offsets: Buffer, data: Buffer | None
    ) -> tuple[ValueBuffers, list[int]]:
        """The values of a binary column in the layout of Arrow, from its entry `start` on.

        What is null is null, and so is what is refused; the rows of those are told.
        """
        ...


def value_reader(shape: Shape, *, avro: bool, skipped: int = 0) -> ValueReader | None:
    """None where nothing was compiled. `skipped` bytes, the first of them zero, stand before each value of Avro."""
    from millpond.wire import kernel

    # Numbers are copied as they are in memory.
    if not kernel.COMPILED or sys.byteorder != "little":
        return None
    try:
        module = import_module("millpond.wire.kernel._values")
    except ImportError:
        return None
    reader: ValueReader = module.ValueReader(shape, avro, skipped)
    return reader
