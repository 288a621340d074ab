"""Records as lines of JSON, in the same format for `consume` and `produce`.

Bytes that are not UTF-8 are written as `{"$base64": "…"}`; `{"$hex": "…"}` is read, too. Headers are an object, or a
list of pairs if a name occurs twice.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Final

from millpond.base.named_tuple import NamedTuple

MARK: Final = "$base64"
HEX_MARK: Final = "$hex"
_FIELDS: Final = frozenset(
    ("key", "value", "headers", "partition", "timestamp", "offset", "topic", "unparsed", "state", "deliveries")
)
"""A line may have them; the last five are ignored."""
_BREAK: Final = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")

Headers = list[tuple[str, bytes | None]]


class NotARecord(ValueError):
    """A line is not a valid record; the message says why."""


class Outgoing(NamedTuple):
    """A record to send; None leaves the choice to the client."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class NotParsed(ValueError):
    """A value could not be parsed; the message says why."""


def dump(
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    *,
    parsed: str | None = None,
    unparsed: str | None = None,
    job: Mapping[str, object] | None = None,
) -> bytes:
    """One record as one line. `parsed` is the value as JSON, `unparsed` the reason why it is not; `job` says what
    the record is in a queue."""
    line: dict[str, object] = {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp_ms,
        "key": shown_data(key),
        "value": None if parsed is not None else shown_data(value),
        "headers": shown_headers(headers),
    }
    if unparsed is not None:
        line["unparsed"] = unparsed
    line |= job or {}
    if parsed is None:
        return as_json(line) + b"\n"
    # The original text, not Python's reading of it: numbers keep their digits, objects their duplicate names.
    parts = (
        as_json(name) + b":" + (parsed.encode() if name == "value" else as_json(each)) for name, each in line.items()
    )
    return b"{" + b",".join(parts) + b"}\n"


def as_json(value: object) -> bytes:
    """On one line, without spaces. Lone surrogates, which are not text, stay escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def load(line: bytes) -> Outgoing:
    """The record in a line. A `value` or `key` that is not a string is sent as its JSON."""
    try:
        fields = json.loads(line)
    except ValueError as fault:
        raise NotARecord(f"not JSON ({fault})") from None
    if not isinstance(fields, dict):
        raise NotARecord('a record must be an object, as {"value": "…"}')
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise NotARecord(f"unknown field {sorted(unknown)[0]}")
    return Outgoing(
        _read(fields.get("value")),
        _read(fields.get("key")),
        _read_headers(fields.get("headers")),
        _whole_number(fields, "partition"),
        _whole_number(fields, "timestamp"),
    )


def shown_data(data: bytes | None) -> object:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {MARK: base64.b64encode(data).decode()}


def parsed_json(data: bytes) -> str:
    """The JSON in the bytes, on one line and otherwise unchanged. Raises NotParsed."""
    try:
        text = data.decode()
        json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise NotParsed("not JSON (too deep)") from None
    except ValueError as fault:
        raise NotParsed(f"not JSON ({fault})") from None
    # A JSON string contains no line break, only \\n.
    return _BREAK.sub(" ", text.strip())


def _no_constant(name: str) -> object:
    """Refuses NaN and Infinity, which Python accepts but no other tool does."""
    raise ValueError(f"{name} is none")


def shown_headers(headers: Headers) -> object:
    shown = [(name, shown_data(value)) for name, value in headers]
    unique = dict(shown)
    return unique if len(unique) == len(shown) else shown


def _read(field: object) -> bytes | None:
    match field:
        case None:
            return None
        case str():
            try:
                return field.encode()
            except UnicodeEncodeError:
                raise NotARecord("a lone surrogate is not text") from None
        case dict() if field.keys() == {HEX_MARK}:
            try:
                return bytes.fromhex(field[HEX_MARK])
            except (TypeError, ValueError):
                raise NotARecord(f"{HEX_MARK} does not hold hexadecimal digits") from None
        case dict() if field.keys() == {MARK}:
            try:
                return base64.b64decode(field[MARK], validate=True)
            except (TypeError, ValueError, binascii.Error):
                raise NotARecord(f"{MARK} does not hold base64") from None
        case _:
            return as_json(field)


def _read_headers(field: object) -> Headers | None:
    match field:
        case None:
            return None
        case dict():
            return [(name, _read(value)) for name, value in field.items()]
        case list() if all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in field):
            return [(name, _read(value)) for name, value in field]
        case _:
            raise NotARecord("headers are an object or a list of [name, value] pairs")


def _whole_number(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63):
        return value
    raise NotARecord(f"{name} must be a whole number of at least 0")
