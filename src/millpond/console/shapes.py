"""Conversion for HTTP: frozen values as JSON, requests parsed within limits, errors as sentences."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final
from uuid import UUID

from starlette.requests import ClientDisconnect, Request

from millpond.base.ids import TopicPartition

BODY_BYTES_MAX: Final = 2 << 20
"""Limit of a request's body."""
PAGE_ROWS: Final = 50
PAGES_MAX: Final = 100_000
FILTER_SIGNS_MAX: Final = 256


class BadRequest(Exception):
    """The request is invalid; the message says what is expected."""


def as_json(value: Any) -> Any:
    """A value of `admin` as JSON types: fields by name, bytes as Base64, and "never" for infinity."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else "never"
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case TopicPartition():
            return {"topic": value.topic, "partition": value.partition}
        case Enum():
            return value.name.lower()
        case UUID():
            return str(value)
        case Mapping():
            return {str(key): as_json(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(each) for each in value]
    assert is_dataclass(value), f"{type(value)} has no shape"
    return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}


def sentence(fault: BaseException) -> str:
    text = str(fault).strip() or type(fault).__name__
    text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def number(request: Request, name: str, default: int, lowest: int, highest: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.removeprefix("-").isdecimal() and len(text) <= 20 and lowest <= int(text) <= highest):
        raise BadRequest(f"{name}={text[:40]}: give a whole number from {lowest:,} to {highest:,}.")
    return int(text)


def amount(request: Request, name: str, default: float, lowest: float, highest: float) -> float:
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        value = float(text) if len(text) <= 40 else math.nan
    except ValueError:
        value = math.nan
    if not lowest <= value <= highest:
        raise BadRequest(f"{name}={text[:40]}: give a number from {lowest:,g} to {highest:,g}.")
    return value


def words(request: Request, name: str, default: str = "") -> str:
    text = request.query_params.get(name, default)
    if len(text) > FILTER_SIGNS_MAX:
        raise BadRequest(f"{name} may have at most {FILTER_SIGNS_MAX} characters.")
    return text


def flag(request: Request, name: str) -> bool:
    return request.query_params.get(name) == "1"


def parsed(data: bytes | bytearray) -> Any:
    """Parses JSON from outside. Refuses lone surrogates, which JSON can express but UTF-8 cannot."""
    try:
        value = json.loads(data.decode())
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise BadRequest("The request is not JSON in UTF-8.") from None
    return value


class Page:
    """One page of a long list: the names that match the filter, and which of them are shown."""

    def __init__(self, request: Request, names: list[str]) -> None:
        text = words(request, "filter").lower()
        fitting = [name for name in names if text in name.lower()]
        self.total = len(names)
        self.fitting = len(fitting)
        self.pages = max(1, -(-len(fitting) // PAGE_ROWS))
        self.page = min(number(request, "page", 1, 1, PAGES_MAX), self.pages)
        self.names = fitting[(self.page - 1) * PAGE_ROWS : self.page * PAGE_ROWS]

    def shape(self, rows: list[Any]) -> dict[str, Any]:
        return {"rows": rows, "total": self.total, "fitting": self.fitting, "page": self.page, "pages": self.pages}


class Body:
    """The JSON object of a request; every field is read with its type."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @classmethod
    async def read(cls, request: Request, bytes_max: int = BODY_BYTES_MAX) -> Body:
        data = bytearray()
        try:
            async for chunk in request.stream():
                data += chunk
                if len(data) > bytes_max:
                    raise BadRequest(f"This request may have at most {bytes_max:,} bytes.")
        except ClientDisconnect:
            raise BadRequest("The request was incomplete.") from None
        fields = parsed(data)
        if not isinstance(fields, dict):
            raise BadRequest("The request must be a JSON object.")
        return cls(fields)

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def names(self, name: str) -> bool:
        """Whether the field is present, even if null."""
        return name in self._fields

    def text(self, name: str, default: str | None = None) -> str:
        value = self._fields.get(name, default)
        if not isinstance(value, str):
            raise BadRequest(f"{name} must be a string.")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def number(self, name: str, lowest: int, highest: int) -> int:
        value = self._fields.get(name)
        if type(value) is not int or not lowest <= value <= highest:
            raise BadRequest(f"{name} must be a whole number from {lowest:,} to {highest:,}.")
        return value

    def number_or_none(self, name: str, lowest: int, highest: int) -> int | None:
        return None if self._fields.get(name) is None else self.number(name, lowest, highest)

    def flag(self, name: str) -> bool:
        value = self._fields.get(name, False)
        if type(value) is not bool:
            raise BadRequest(f"{name} must be true or false.")
        return value

    def texts(self, name: str) -> dict[str, str]:
        value = self._fields.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise BadRequest(f"{name} must be an object of strings.")
        return value

    def lists(self, name: str) -> Mapping[str, Sequence[Any]]:
        value = self._fields.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(each, list) for each in value.values()):
            raise BadRequest(f"{name} must be an object of lists.")
        return value

    def list(self, name: str) -> list[Any]:
        value = self._fields.get(name, [])
        if not isinstance(value, list):
            raise BadRequest(f"{name} must be a list.")
        return value
