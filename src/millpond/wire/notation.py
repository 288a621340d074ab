"""The compact notation in which the protocol's messages are declared, and its parser.

A `.schema` file holds one or two messages. A message begins at the margin; its fields follow, one a line, indented:

    request FetchRequest  key 1  versions 4-18  flexible 12+
        cluster_id        string?       12+   tag 0  = null  ignorable
        max_wait_ms       int32
        topics            []FetchTopic
            topic         string        4-12  ignorable
            partitions    []int32?7+
        leader            Leader        10+
        struct Leader
            node_id       int32               = -1

- The first word is the kind: `request`, `response`, `record` (of the metadata log), `key` and `value` (of a
  coordinator's log), or `data`. `key` is the API key, or the type of a metadata record. From the version after
  `flexible` on, lengths are varints and every structure ends in tagged fields; without it no version does so.
- A field is `name type [versions] [tag N] [= default] [ignorable]`. Without versions it lives as long as the
  structure that holds it.
- Types: bool int8 int16 uint16 int32 uint32 int64 float64 uuid string bytes records; `[]type` is an array of it; a
  name with a capital is a structure, whose fields follow one level deeper, or in a `struct` block of the message when
  several fields share it.
- `?` after the type: may be null, always or in the versions that follow, as in `[]int32?7+`.
- `tag N`: a tagged field, sent only when it differs from its default. Tags from 10000 on are Millpond's own: other
  implementations skip them.
- Without a default: zero, false, empty; a `records` field that may be null is null.
- A field that a version lacks is refused by the encoder unless it has its default value or is `ignorable`.
- `#` begins a comment.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.base.named_tuple import NamedTuple

PRIMITIVES = frozenset(
    ["bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "uuid", "string", "bytes", "records"],
)
KINDS = ("request", "response", "record", "key", "value", "data")
INDENT = 4

Default = bool | int | float | str | bytes | list[object] | None


class SchemaError(ValueError):
    """A schema that does not follow the notation; the message names the line."""


class Versions(NamedTuple):
    """An inclusive range of versions."""

    first: int
    last: int

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last


class Field(NamedTuple):
    name: str
    type: str
    """A primitive or the name of a structure; of an array, the type of its elements."""
    is_array: bool
    struct: Struct | None
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: Default
    """Of a structure that cannot be null: None, meaning a structure of defaults."""
    ignorable: bool

    def is_nullable(self, version: int) -> bool:
        return self.nullable is not None and self.nullable.has(version)


class Struct:
    """A named group of fields, in the order in which they are sent."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[Field] = []


class Message(NamedTuple):
    kind: str
    name: str
    key: int | None
    versions: Versions
    flexible_from: int | None
    root: Struct
    structs: tuple[Struct, ...]
    """Every structure inside the message, however deep, each once."""

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


class Line(NamedTuple):
    number: int
    depth: int
    words: list[str]


def parse(text: str, only: str | None = None) -> list[Message]:
    """All messages of one schema file, or the one of this name: few need a request and its response at once."""
    lines = list(_lines(text))
    heads = [index for index, line in enumerate(lines) if line.depth == 0]
    if lines and (not heads or heads[0] != 0):
        raise SchemaError(f"line {lines[0].number}: a message begins at the margin")
    ends = [*heads[1:], len(lines)]
    return [
        _MessageParser(lines[head]).parse(lines[head + 1 : end])
        for head, end in zip(heads, ends, strict=True)
        if only is None or lines[head].words[1:2] == [only]
    ]


def _lines(text: str) -> Iterator[Line]:
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].rstrip()
        if not content:
            continue
        stripped = content.lstrip(" ")
        depth, rest = divmod(len(content) - len(stripped), INDENT)
        if rest:
            raise SchemaError(f"line {number}: indent by {INDENT} spaces a level")
        yield Line(number, depth, stripped.split())


class _MessageParser:
    """Reads one message: its head, then its fields and shared structures."""

    def __init__(self, head: Line) -> None:
        kind, name, *rest = [*head.words, "", ""][: max(2, len(head.words))]
        marks = dict(zip(rest[::2], rest[1::2], strict=False))
        if kind not in KINDS or not name or "versions" not in marks or len(rest) % 2:
            raise SchemaError(f"line {head.number}: expected '<kind> <Name> [key N] versions A-B [flexible C+]'")
        if unknown := marks.keys() - {"key", "versions", "flexible"}:
            raise SchemaError(f"line {head.number}: what is {sorted(unknown)[0]!r}?")
        self.kind, self.name = kind, name
        self.key = int(marks["key"]) if "key" in marks else None
        self.versions = _versions(marks["versions"], None, head.number)
        self.flexible_from = int(marks["flexible"].rstrip("+")) if "flexible" in marks else None
        self.structs: dict[str, Struct] = {}

    def parse(self, lines: list[Line]) -> Message:
        root = Struct(self.name)
        index = self._fields(lines, 0, 1, self.versions, root)
        while index < len(lines) and lines[index].words[0] == "struct":
            line = lines[index]
            if line.depth != 1 or len(line.words) != 2:
                raise SchemaError(f"line {line.number}: expected 'struct <Name>', one level deep")
            index = self._fields(lines, index + 1, 2, self.versions, self._struct(line.words[1]))
        if index < len(lines):
            raise SchemaError(f"line {lines[index].number}: indented deeper than what holds it")
        for struct in self.structs.values():
            if not struct.fields:
                raise SchemaError(f"{self.name}: structure {struct.name} is not declared")
        self._refuse_cycles(root, ())
        return Message(
            self.kind, self.name, self.key, self.versions, self.flexible_from, root, tuple(self.structs.values())
        )

    def _fields(self, lines: list[Line], index: int, depth: int, outer: Versions, into: Struct) -> int:
        """Read the fields at this depth into `into`; returns the index of the first line that is not one of them."""
        while index < len(lines) and lines[index].depth == depth and lines[index].words[0] != "struct":
            line = lines[index]
            field = self._field(line, outer)
            if any(other.name == field.name for other in into.fields):
                raise SchemaError(f"line {line.number}: {into.name} has {field.name} twice")
            into.fields.append(field)
            index += 1
            if index < len(lines) and lines[index].depth == depth + 1 and field.struct:
                index = self._fields(lines, index, depth + 1, field.versions, field.struct)
        return index

    def _field(self, line: Line, outer: Versions) -> Field:
        if len(line.words) < 2:
            raise SchemaError(f"line {line.number}: expected 'name type …'")
        name, declared, *rest = line.words
        type_name, mark, null_versions = declared.partition("?")
        element = type_name.removeprefix("[]")
        is_array = element != type_name
        if element not in PRIMITIVES and not element[:1].isupper():
            raise SchemaError(f"line {line.number}: what is the type {element!r}?")
        versions = _versions(rest.pop(0), outer, line.number) if rest and rest[0][0].isdigit() else outer
        nullable = None
        if mark:
            nullable = _versions(null_versions, versions, line.number) if null_versions else versions
        tag: int | None = None
        written: str | None = None
        ignorable = False
        while rest:
            match rest:
                case ["tag", number, *rest] if number.isdigit():
                    tag = int(number)
                case ["=", written, *rest]:
                    pass
                case ["ignorable", *rest]:
                    ignorable = True
                case _:
                    raise SchemaError(f"line {line.number}: what is {rest[0]!r}?")
        struct = None if element in PRIMITIVES else self._struct(element)
        if element == "records" and nullable:
            written = "null"
        default = _default(element, is_array, written, line.number)
        if tag is not None and element == "records":
            raise SchemaError(f"line {line.number}: records cannot be tagged, since they are not copied")
        if default is None and nullable is None and struct is None:
            raise SchemaError(f"line {line.number}: {name} defaults to null but cannot be null")
        return Field(name, element, is_array, struct, versions, nullable, tag, default, ignorable)

    def _struct(self, name: str) -> Struct:
        return self.structs.setdefault(name, Struct(name))

    def _refuse_cycles(self, struct: Struct, above: tuple[str, ...]) -> None:
        if struct.name in above:
            raise SchemaError(f"{self.name}: structure {struct.name} holds itself")
        for field in struct.fields:
            if field.struct:
                self._refuse_cycles(field.struct, (*above, struct.name))


def _versions(text: str, outer: Versions | None, number: int) -> Versions:
    """`3`, `3-7` or `3+`; the last needs the range that it lies in."""
    first, dash, last = text.removesuffix("+").partition("-")
    try:
        if text.endswith("+"):
            versions = Versions(int(first), outer.last if outer else -1)
        else:
            versions = Versions(int(first), int(last) if dash else int(first))
    except ValueError:
        raise SchemaError(f"line {number}: {text!r} is no range of versions") from None
    if versions.first > versions.last or (outer and not (outer.has(versions.first) and outer.has(versions.last))):
        raise SchemaError(f"line {number}: versions {text} lie outside of what holds them")
    return versions


def _default(element: str, is_array: bool, written: str | None, number: int) -> Default:
    if written == "null":
        return None
    if is_array:
        return []
    try:
        match element:
            case "bool":
                return {"true": True, "false": False, None: False}[written]
            case "string":
                return (written or "").strip('"')
            case "float64":
                return float(written or 0)
            case "bytes" | "records":
                return b""
            case "uuid":
                return 0
            case _ if element in PRIMITIVES:
                return int(written, 0) if written else 0
            case _:
                return None
    except (KeyError, ValueError):
        raise SchemaError(f"line {number}: {written!r} is no default of a {element}") from None
