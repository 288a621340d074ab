"""Record values into columns: the input and output of the compiled `_values.ValueReader`.

Its plain twin is the row-by-row path of `columns` (json_rows, avro_rows), which defines what a value means and
what is wrong with it. That handles every value that the compiled reader refuses, and all of them without the kernel.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import Protocol

from millpond.base.ports import Buffer

RUN_BYTES_MAX = 64 << 20
"""The most that one call reads; so no offset of a column can exceed 32 bits."""
VALUE_BYTES_MAX = 16 << 20
"""Longer values are refused: reading a small text can need a hundred times its size."""
BRANCHES_MAX = 3


class Kind(IntEnum):
    """The type of a column."""

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
    """How Avro encodes the column's values."""

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
    """A column and its children: the fields of a struct, the element of a list, the key and the value of a map."""

    kind: Kind
    children: tuple[Shape, ...] = ()
    name: str = ""
    """In JSON, the key of the struct's field."""
    required: bool = False
    """In JSON, whether a struct must have it."""
    precision: int = 0
    scale: int = 0
    """For a decimal."""
    written: tuple[Written, ...] = ()
    """In Avro: one encoding, or the branches of a union."""
    is_union: bool = False
    factor: int = 1
    """In Avro: the factor from the encoded number to the column's."""
    size: int = 0
    """For Avro's fixed type."""
    symbols: tuple[str, ...] = ()
    """For Avro's enum type."""


@dataclass(frozen=True, slots=True)
class ValueBuffers:
    """A column in Arrow's layout: `offsets` for lists, maps, strings and binaries, `data` for types without
    children. `validity` is None without nulls."""

    rows: int
    null_count: int
    validity: Buffer | None
    offsets: Buffer | None
    data: Buffer | None
    children: tuple[ValueBuffers, ...]


class ValueReader(Protocol):
    """Reads many values at once. It accepts fewer than its plain twin, and reads those it accepts alike.

    Only one thread reads at a time.
    """

    def read(
        self, count: int, start: int, validity: Buffer | None, offsets: Buffer, data: Buffer | None
    ) -> tuple[ValueBuffers, list[int]]:
        """The values of a binary column in Arrow's layout, from its entry `start` on.

        Null and refused values are null; the rows of refused ones are returned.
        """
        ...


def value_reader(shape: Shape, *, avro: bool, skipped: int = 0) -> ValueReader | None:
    """None without the kernel. `skipped` bytes, the first of them zero, precede each Avro value."""
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
