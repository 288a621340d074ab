"""Reads JSON values one at a time by a schema. This is the reference for what a value means, and for error reasons.

As in Spark's `from_json`, a string column accepts any JSON and keeps its text, a decimal may be written as a string,
and binary is base64. A time is ISO 8601, in UTC if it has no zone, or a number of seconds, milliseconds, microseconds
or nanoseconds since 1970, distinguished by magnitude.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from millpond.columns import types
from millpond.columns.errors import Fault, shown

Reader: TypeAlias = Callable[[Any], Any]
"""Converts a parsed JSON value for Arrow; Fault if it does not fit."""

SECONDS_BELOW: Final = 10**11
MILLISECONDS_BELOW: Final = 10**14
MICROSECONDS_BELOW: Final = 10**17
NANOSECONDS_BELOW: Final = 1 << 63
"""Numbers below the first limit are seconds, up to the year 5138; each further unit starts at the limit before."""

DECIMAL_CHARACTERS_MAX: Final = 100

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_BITS: Final = ((types.ByteType, 8), (types.ShortType, 16), (types.IntegerType, 32), (types.LongType, 64))
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}(?::\d{2}(?::\d{2}(?:\.\d{1,9})?)?)?)(Z|[+-]\d{2}(?::?\d{2})?)?)?", re.ASCII
)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)


def row_reader(kind: types.StructType) -> Callable[[bytes], dict[str, Any]]:
    """Reads one complete value; raises Fault with the reason if it is bad."""
    read = _reader(kind, "")

    def read_row(value: bytes) -> dict[str, Any]:
        try:
            text = value.decode()
        except UnicodeDecodeError as fault:
            raise Fault(f"not UTF-8 text: byte {fault.start + 1} is 0x{value[fault.start]:02x}") from None
        try:
            decoded = _DECODER.decode(text)
        except json.JSONDecodeError as fault:
            where = "the value is empty" if not text.strip() else f"{fault.msg} at character {fault.pos + 1}"
            raise Fault(f"not JSON: {where}") from None
        except RecursionError:
            raise Fault("not readable: nested too deep") from None
        except ValueError:
            raise Fault("not readable: a number has thousands of digits") from None
        except ArithmeticError:
            raise Fault(_BEYOND_MEASURE) from None
        if not isinstance(decoded, dict):
            raise Fault(f"an object was expected, not {_named(decoded)}")
        try:
            row: dict[str, Any] = read(decoded)
        except ArithmeticError:
            raise Fault(_BEYOND_MEASURE) from None
        return row

    return read_row


_BEYOND_MEASURE: Final = "not readable: a number is beyond all measure"

# Decimal keeps every digit until the column's type is applied.
_DECODER: Final = json.JSONDecoder(parse_float=Decimal)


def _reader(kind: types.DataType, path: str) -> Reader:
    for integer, bits in _BITS:
        if isinstance(kind, integer):
            return _integer(path, bits)
    match kind:
        case types.StructType():
            return _struct(kind, path)
        case types.ArrayType():
            return _array(_reader(kind.element, f"{path}[]"), path)
        case types.MapType():
            return _map(_reader(kind.value, f"{path}{{}}"), path)
        case types.StringType():
            return _string(path)
        case types.BooleanType():
            return _boolean(path)
        case types.DoubleType():
            return _double(path)
        case types.FloatType():
            return _float(path)
        case types.DecimalType():
            return _decimal(kind, path)
        case types.BinaryType():
            return _binary(path)
        case types.DateType():
            return _date(path)
        case types.TimestampType() | types.TimestampNTZType():
            return _timestamp(path)
    raise AssertionError(f"{kind} was not refused when the schema was read")


def _wrong(path: str, expected: str, value: Any) -> Fault:
    return Fault(f"{path}: {expected} was expected, not {_named(value)}")


def _named(value: Any) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "an array"
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() if value.bit_length() > 1024:
            return "a huge number"
        case int() | float() | Decimal():
            return shown(str(value))
    return shown(json.dumps(value, ensure_ascii=False))


def _struct(kind: types.StructType, path: str) -> Reader:
    prefix = f"{path}." if path else ""
    readers = [(each.name, _reader(each.type, prefix + each.name), not each.nullable) for each in kind]

    def read(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        row: dict[str, Any] = {}
        for name, reader, required in readers:
            each = value.get(name)
            if each is not None:
                row[name] = reader(each)
            elif required:
                raise Fault(f"{prefix}{name}: a value is required and {'is null' if name in value else 'is missing'}")
        return row

    return read


def _array(reader: Reader, path: str) -> Reader:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(path, "an array", value)
        return [None if each is None else reader(each) for each in value]

    return read


def _map(reader: Reader, path: str) -> Reader:
    def read(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        return [(_whole(path, key), None if each is None else reader(each)) for key, each in value.items()]

    return read


def _whole(path: str, text: str) -> str:
    """JSON allows lone surrogates, which are not valid text elsewhere."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Fault(f"{path}: half of a surrogate pair is not text") from None
    return text


def _string(path: str) -> Reader:
    def read(value: Any) -> str:
        if isinstance(value, str):
            return _whole(path, value)
        if isinstance(value, Decimal):
            return str(value)
        return _whole(path, json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float))

    return read


def _boolean(path: str) -> Reader:
    def read(value: Any) -> bool:
        if value is True or value is False:
            return bool(value)
        raise _wrong(path, "true or false", value)

    return read


def _integer(path: str, bits: int) -> Reader:
    end = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int:
            raise _wrong(path, "a whole number", value)
        if not -end <= value < end:
            raise Fault(f"{path}: {_named(value)} does not fit into {bits} bits")
        return value

    return read


_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _double(path: str) -> Reader:
    def read(value: Any) -> float:
        if type(value) is float:
            return value
        try:
            if type(value) in (Decimal, int):
                number = float(value)
                if number in (float("inf"), float("-inf")):
                    raise OverflowError
                return number
        except OverflowError:
            raise Fault(f"{path}: the number is too large") from None
        if isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        raise _wrong(path, "a number", value)

    return read


def _float(path: str) -> Reader:
    read_double = _double(path)

    def read(value: Any) -> float:
        number: float = read_double(value)
        try:
            struct.pack("<f", number)
        except OverflowError:
            raise Fault(f"{path}: {number} does not fit into 32 bits") from None
        return number

    return read


def _decimal(kind: types.DecimalType, path: str) -> Reader:
    step = Decimal(1).scaleb(-kind.scale)
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def read(value: Any) -> Decimal:
        number = _as_decimal(value)
        if number is None:
            raise _wrong(path, f"a {kind.text}", value)
        try:
            # Arithmetic would round to 28 digits; copying and comparing does not.
            if number.copy_abs() < limit and (rounded := number.quantize(step, context=_WIDE)) == number:
                return rounded
        except InvalidOperation:
            pass
        raise Fault(f"{path}: {_named(number)} does not fit into {kind.text}")

    return read


def _as_decimal(value: Any) -> Decimal | None:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, str) and len(value) <= DECIMAL_CHARACTERS_MAX and _NUMBER.fullmatch(value):
        return Decimal(value)
    return Decimal(value) if type(value) is int and value.bit_length() < DECIMAL_CHARACTERS_MAX * 3 else None


_WIDE: Final = Context(prec=80)


def _binary(path: str) -> Reader:
    def read(value: Any) -> bytes:
        try:
            if isinstance(value, str):
                return base64.b64decode(value, validate=True)
        except ValueError:
            pass
        raise _wrong(path, "base64 text", value)

    return read


def _date(path: str) -> Reader:
    def read(value: Any) -> int:
        try:
            if isinstance(value, str) and _DAY.fullmatch(value):
                return date.fromisoformat(value).toordinal() - _EPOCH_DAY
        except ValueError:
            pass
        raise _wrong(path, "a date such as 2030-12-31", value)

    return read


def _timestamp(path: str) -> Reader:
    def read(value: Any) -> int:
        try:
            if isinstance(value, str):
                return iso_microseconds(value)
            if type(value) is int:
                return epoch_microseconds(value)
            if isinstance(value, Decimal) and value.copy_abs() < MICROSECONDS_BELOW:
                return _fraction_microseconds(value)
        except (ValueError, OverflowError):
            pass
        raise _wrong(path, "a time such as 2030-12-31T23:59:59Z", value)

    return read


def iso_microseconds(text: str) -> int:
    """The time since 1970; ValueError if the text is not a time."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, clock, zone = match.groups()
    moment = datetime.fromisoformat(f"{day}T{clock}{zone or '+00:00'}" if clock else f"{day}T00:00:00+00:00")
    return (moment - _EPOCH) // _MICROSECOND


def epoch_microseconds(number: int) -> int:
    """Microseconds since 1970, truncated; ValueError for a number too large to be a time."""
    size = abs(number)
    if size < SECONDS_BELOW:
        return number * 1_000_000
    if size < MILLISECONDS_BELOW:
        return number * 1_000
    if size < MICROSECONDS_BELOW:
        return number
    if size < NANOSECONDS_BELOW:
        return number // 1_000 if number >= 0 else -(-number // 1_000)
    raise ValueError(number)


def _fraction_microseconds(number: Decimal) -> int:
    size = number.copy_abs()
    if size < SECONDS_BELOW:
        return int(number * 1_000_000)
    if size < MILLISECONDS_BELOW:
        return int(number * 1_000)
    return int(number)
