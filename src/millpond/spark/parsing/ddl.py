"""Spark's notation for schemas (`id long, items array<struct<sku:string,n:int>>`), read without Spark.

PySpark leaves this to the JVM, which Python workers do not have.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql import types

from millpond.spark.parsing.errors import SchemaError

T = TypeVar("T")

CHARACTERS_MAX: Final = 1 << 20
DEPTH_MAX: Final = 64

SIMPLE: Final[dict[str, Callable[[], types.DataType]]] = {
    "boolean": types.BooleanType,
    "byte": types.ByteType,
    "tinyint": types.ByteType,
    "short": types.ShortType,
    "smallint": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "long": types.LongType,
    "bigint": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "string": types.StringType,
    "binary": types.BinaryType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_TEXTS: Final = ("char", "character", "varchar")
_NESTED: Final = ("array", "map", "struct")

_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<name>[^\W\d]\w*|\d+\w*) | `(?P<quoted>(?:[^`]|``)+)` | (?P<sign>[<>(),:])
          | '(?P<text>(?:[^'\\]|\\.)*)' | "(?P<text2>(?:[^"\\]|\\.)*)" )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def read_ddl(text: str) -> types.StructType:
    """The schema; SchemaError says where it cannot be read."""
    if len(text) > CHARACTERS_MAX:
        raise SchemaError(f"the schema has {len(text):,} characters; at most {CHARACTERS_MAX:,} are read")
    reader = _Reader(text)
    if reader.is_word("struct", "<"):
        struct = reader.type(0)
        reader.end()
        assert isinstance(struct, types.StructType)
        return struct
    fields = reader.fields(until="", depth=0)
    reader.end()
    return types.StructType(fields)


class _Reader:
    """A token stream with a lookahead of two."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    def fields(self, until: str, depth: int) -> list[types.StructField]:
        """Read up to the sign `until`, which is not consumed."""
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        if until and not self._is(until):
            raise self._unexpected(f"a comma or {until!r}")
        name, times = Counter(each.name for each in fields).most_common(1)[0]
        if times > 1:
            raise SchemaError(f"the schema has the field {name!r} {times} times")
        return fields

    def type(self, depth: int) -> types.DataType:
        if depth > DEPTH_MAX:
            raise SchemaError(f"the schema is nested more than {DEPTH_MAX} deep")
        at = self._at
        word = self._name("a type").lower()
        if word in SIMPLE:
            return SIMPLE[word]()
        if word in _DECIMALS:
            return self._decimal()
        if word in _TEXTS:
            self._numbers()
            return types.StringType()
        if word == "array":
            return types.ArrayType(self._inside(lambda: self.type(depth + 1)))
        if word == "map":
            return self._inside(lambda: self._map(depth + 1))
        if word == "struct":
            return types.StructType(self._inside(lambda: self.fields(">", depth + 1)))
        self._at = at
        near = difflib.get_close_matches(word, [*SIMPLE, *_DECIMALS, *_TEXTS, *_NESTED], n=1)
        known = [*SIMPLE, "decimal(p,s)", "array<…>", "map<…,…>", "struct<…>"]
        raise self._unexpected(f"a type, such as {near[0]}" if near else f"a type ({', '.join(known)})")

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._unexpected("a comma or the end")

    def is_word(self, word: str, sign: str) -> bool:
        ahead = self._tokens[self._at : self._at + 2]
        return [each.text.lower() for each in ahead] == [word, sign]

    def _field(self, depth: int) -> types.StructField:
        name = self._name("the name of a field")
        self._take(":")
        kind = self.type(depth)
        required = self._take("not")
        if required and not self._take("null"):
            raise self._unexpected("NULL")
        if self._take("comment"):
            self._comment()
        return types.StructField(name, kind, not required)

    def _comment(self) -> None:
        if self._next("text") is None:
            raise self._unexpected("the text of the comment, in quotes")
        # Adjacent string literals are concatenated.
        while self._next("text") is not None:
            pass

    def _map(self, depth: int) -> types.MapType:
        key = self.type(depth)
        if not self._take(","):
            raise self._unexpected("a comma")
        return types.MapType(key, self.type(depth))

    def _inside(self, read: Callable[[], T]) -> T:
        if not self._take("<"):
            raise self._unexpected("'<'")
        inner = read()
        if not self._take(">"):
            raise self._unexpected("'>'")
        return inner

    def _decimal(self) -> types.DecimalType:
        given = self._numbers()
        precision, scale = [*given, 0][:2] if given else (10, 0)
        if not (1 <= precision <= 38 and 0 <= scale <= precision and len(given) <= 2):
            raise SchemaError("decimal(p,s) has 1 to 38 digits, and at most all of them after the point")
        return types.DecimalType(precision, scale)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if not self._take("("):
            return numbers
        while not self._take(")"):
            text = self._name("a number")
            if not text.isdecimal():
                raise SchemaError(f"{text!r} in the schema should be a number")
            numbers.append(int(text))
            self._take(",")
        return numbers

    def _name(self, what: str) -> str:
        token = self._next("name") or self._next("quoted")
        if token is None:
            raise self._unexpected(what)
        return token.text

    def _is(self, text: str) -> bool:
        if self._at >= len(self._tokens):
            return False
        token = self._tokens[self._at]
        return token.kind in ("sign", "name") and token.text.lower() == text

    def _take(self, text: str) -> bool:
        taken = self._is(text)
        self._at += taken
        return taken

    def _next(self, kind: str) -> _Token | None:
        if self._at < len(self._tokens) and self._tokens[self._at].kind == kind:
            self._at += 1
            return self._tokens[self._at - 1]
        return None

    def _unexpected(self, wanted: str) -> SchemaError:
        if self._at >= len(self._tokens):
            return SchemaError(f"the schema ends where {wanted} should be: …{self._text[-40:]}")
        token = self._tokens[self._at]
        return SchemaError(
            f"{token.text!r} at character {token.at + 1} of the schema should be {wanted}; "
            'a schema looks like "id long, items array<struct<sku:string,n:int>>"'
        )


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise SchemaError(f"character {at + 1} of the schema ({text[at : at + 20]!r}) means nothing there")
        kind = str(match.lastgroup)
        word = match[kind].replace("``", "`") if kind == "quoted" else match[kind]
        yield _Token("text" if kind == "text2" else kind, word, match.start(kind))
        at = match.end()
