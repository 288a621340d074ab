"""Spark's notation for schemas (`id long, items array<struct<sku:string,n:int>>`), read without Spark.

PySpark leaves this to the JVM, which Python workers do not have.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from millpond.columns import types
from millpond.columns.cursor import Cursor
from millpond.columns.errors import SchemaError
from millpond.columns.tokens import SqlError

T = TypeVar("T")

CHARACTERS_MAX: Final = 1 << 20
DEPTH_MAX: Final = 64

_OTHERS: Final = ("decimal", "dec", "numeric", "char", "character", "varchar", "array", "map", "struct")


def read_ddl(text: str) -> types.StructType:
    """The schema; SchemaError says where it cannot be read."""
    if len(text) > CHARACTERS_MAX:
        raise SchemaError(f"the schema has {len(text):,} characters; at most {CHARACTERS_MAX:,} are read")
    try:
        return _Reader(text).schema()
    except SqlError as fault:
        example = 'a schema looks like "id long, items array<struct<sku:string,n:int>>"'
        raise SchemaError(f"{fault}; {example}") from None


class _Reader(Cursor):
    """Reads fields and types."""

    def schema(self) -> types.StructType:
        if self.is_word("STRUCT") and self.ahead(1).text == "<":
            struct = self.type(0)
            assert isinstance(struct, types.StructType)
        else:
            struct = types.StructType(self.fields(0))
        if self.next.kind != "end":
            raise self.unexpected("a comma or the end of the schema", ())
        return struct

    def fields(self, depth: int) -> list[types.StructField]:
        fields = [self._field(depth)]
        while self.accept_sign(","):
            fields.append(self._field(depth))
        name, times = Counter(each.name for each in fields).most_common(1)[0]
        if times > 1:
            raise SchemaError(f"the schema has the field {name!r} {times} times")
        return fields

    def type(self, depth: int) -> types.DataType:
        if depth > DEPTH_MAX:
            raise SchemaError(f"the schema is nested more than {DEPTH_MAX} deep")
        word = self.next.upper.lower()
        if word in types.SIMPLE:
            self.take()
            return types.SIMPLE[word]()
        if self.accept_word("DECIMAL", "DEC", "NUMERIC"):
            return self._decimal()
        if self.accept_word("CHAR", "CHARACTER", "VARCHAR"):
            self._numbers()
            return types.StringType()
        if self.accept_word("ARRAY"):
            return types.ArrayType(self._inside(lambda: self.type(depth + 1)))
        if self.accept_word("MAP"):
            return self._inside(lambda: self._map(depth + 1))
        if self.accept_word("STRUCT"):
            return types.StructType(self._inside(lambda: self.fields(depth + 1)))
        near = difflib.get_close_matches(word, [*types.SIMPLE, *_OTHERS], n=1)
        known = [*types.SIMPLE, "decimal(p,s)", "array<…>", "map<…,…>", "struct<…>"]
        raise self.unexpected(f"a type, such as {near[0]}" if near else f"a type ({', '.join(known)})", ())

    def _field(self, depth: int) -> types.StructField:
        name = self._name("the name of a field")
        self.accept_sign(":")
        kind = self.type(depth)
        required = self.accept_word("NOT")
        if required:
            self.expect_word("NULL")
        if self.accept_word("COMMENT"):
            if self.next.kind != "text":
                raise self.unexpected("the text of the comment, in quotes", ())
            # Adjacent string literals are concatenated.
            while self.next.kind == "text":
                self.take()
        return types.StructField(name, kind, not required)

    def _name(self, what: str) -> str:
        if self.next.kind not in ("word", "quoted", "number") or not self.next.text:
            raise self.unexpected(what, ())
        return self.take().text

    def _map(self, depth: int) -> types.MapType:
        key = self.type(depth)
        if not self.accept_sign(","):
            raise self.unexpected("a comma", ())
        return types.MapType(key, self.type(depth))

    def _inside(self, read: Callable[[], T]) -> T:
        self.expect_sign("<")
        inner = read()
        self.expect_sign(">")
        return inner

    def _decimal(self) -> types.DecimalType:
        numbers = self._numbers()
        precision, scale = [*numbers, 0][:2] if numbers else (10, 0)
        if not (1 <= precision <= 38 and 0 <= scale <= precision and len(numbers) <= 2):
            raise SchemaError("decimal(p,s) has 1 to 38 digits, and at most all of them after the point")
        return types.DecimalType(precision, scale)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if not self.accept_sign("("):
            return numbers
        while not self.accept_sign(")"):
            if not self.next.text.isdecimal():
                raise self.unexpected("a number", ())
            numbers.append(int(self.take().text))
            self.accept_sign(",")
        return numbers
