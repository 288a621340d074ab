"""What generated decoders and encoders call for the rare and the long: varints, tags, records."""

from __future__ import annotations

import struct
from functools import lru_cache
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID
from millpond.base.ports import ReplyPart

VARINT_LENGTH_MAX = 5
UUIDS_KEPT = 4096
ARRAY_LENGTH_KEPT = 64
STRING_LENGTH_MAX = 0x7FFF
STEP_ITEMS = 500
"""So many items of lists are read or written in one step, where that is done in steps: one or two milliseconds."""

STEP_BYTES = 256 << 10
"""A step ends after this many bytes, too: long strings take a few milliseconds for each megabyte."""

HEADER_TAGS_MAX = 100
"""The maximum number of tagged fields in a message header. No client sends any so far."""

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The `struct` format of every type of a fixed size."""


class Bad(Exception):
    """Bytes that cannot be. Turned into MalformedMessage, with the field's name, by the caller."""


def beyond(count: int, left: int) -> Bad:
    """A length or count that what is left cannot hold."""
    return Bad(f"announces {count}, but only {left} bytes are left")


class TooMany(Bad):
    """Lists that have, all together, more items than are taken."""


def too_many() -> TooMany:
    return TooMany("more items in lists than one message may have (max.request.items)")


def uneven(position: int, announced: int) -> Bad:
    """A tagged field that is shorter or longer than it said."""
    return Bad(f"ends at {position} but was announced to end at {announced}")


class Missing(Exception):
    """A value that this version has no field for."""

    def __init__(self) -> None:
        super().__init__("this version cannot carry the value")


class TooLong(Exception):
    def __init__(self) -> None:
        super().__init__(f"a string may take {STRING_LENGTH_MAX} bytes at most")


class Arrays(dict[int, struct.Struct]):
    """Packers of n numbers of one kind, by n. Those of short arrays, which are nearly all, are kept."""

    def __init__(self, format_: str) -> None:
        super().__init__()
        self.format = format_

    def __missing__(self, count: int) -> struct.Struct:
        made = struct.Struct(f">{count}{self.format}")
        if count <= ARRAY_LENGTH_KEPT:
            self[count] = made
        return made


def longer(buffer: memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte announced more; returns it and the position after it."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise Bad(f"a varint of more than {VARINT_LENGTH_MAX} bytes")


def varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_length(one_more: int) -> bytes:
    """The varint of a string's length, which came with one added."""
    if one_more > STRING_LENGTH_MAX + 1:
        raise TooLong
    return varint(one_more)


def open_tag(buffer: memoryview, position: int, end: int) -> tuple[int, int, int]:
    """A tagged field's number, where its value ends, and where it begins."""
    tag = buffer[position]
    position += 1
    if tag > 127:
        tag, position = longer(buffer, position, tag)
    size = buffer[position]
    position += 1
    if size > 127:
        size, position = longer(buffer, position, size)
    if size > end - position:
        raise beyond(size, end - position)
    return tag, position + size, position


def skip_tags(buffer: memoryview, position: int, end: int, number: int, left: int) -> tuple[int, int]:
    """Skip unknown tagged fields; `number` is the first byte of their count. Returns the position
    after them, and what is left of `left`, the number of items that the message may have."""
    if number > 127:
        number, position = longer(buffer, position, number)
    if number * 2 > end - position:
        raise beyond(number, end - position)
    if number > left:
        raise too_many()
    for _ in range(number):
        _, position, _ = open_tag(buffer, position, end)
    return position, left - number


@lru_cache(maxsize=UUIDS_KEPT)
def uuid(raw: bytes) -> UUID:
    """The same few topic ids come with every request, and making a UUID is slow."""
    return UUID(bytes=raw)


def joined(parts: list[ReplyPart]) -> bytes:
    """All parts as one; those that lie in files have no bytes to join."""
    try:
        return b"".join(parts)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError("a message with a file range is encoded in parts") from None


NAMES: dict[str, object] = {
    "Missing": Missing,
    "ZERO": NO_TOPIC_ID,
    "beyond": beyond,
    "longer": longer,
    "new": object.__new__,
    "open_tag": open_tag,
    "skip_tags": skip_tags,
    "string_length": string_length,
    "too_many": too_many,
    "uneven": uneven,
    "uuid": uuid,
    "varint": varint,
    **{f"arrays_{type_}": Arrays(format_) for type_, format_ in FIXED.items() if type_ != "uuid"},
}
"""The globals of all generated code."""
