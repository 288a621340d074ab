"""Decode a record's value: text, JSON, a dataclass, a msgspec.Struct or a pydantic model.

A value that does not fit is a ValueError; `Message` adds which record it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from millpond.base.words import with_article
from millpond.client.errors import needs


def text_of(value: bytes | None) -> str:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError as fault:
        raise ValueError(f"the value is not UTF-8 text: {fault}") from fault


def json_of(value: bytes | None) -> Any:
    if value is None:
        raise ValueError("a record without a value is no JSON")
    try:
        return json.loads(value)
    except ValueError as fault:
        raise ValueError(f"the value is not JSON: {fault}") from fault


@cache
def reader_of(kind: Any) -> Callable[[bytes | None], Any]:
    """A function from bytes to a `kind`."""
    if kind is bytes:
        return lambda value: value
    if kind is str:
        return text_of
    if kind is Any:
        return json_of
    if hasattr(kind, "model_validate_json"):
        return _guarded(kind, kind.model_validate_json)
    if kind in (dict, list, int, float, bool):
        return lambda value: _checked(value, kind)
    return _guarded(kind, msgspec_module().json.Decoder(kind).decode)


def msgspec_module() -> Any:
    try:
        import msgspec
        import msgspec.json
    except ImportError as fault:
        raise needs("msgspec", "client") from fault
    return msgspec


def _checked(value: bytes | None, kind: type) -> Any:
    read = json_of(value)
    if not isinstance(read, kind):
        raise ValueError(f"expected {with_article(kind.__name__)}, not {with_article(type(read).__name__)}")
    return read


def _guarded(kind: Any, decode: Callable[[bytes], Any]) -> Callable[[bytes | None], Any]:
    name = getattr(kind, "__name__", str(kind))

    def read(value: bytes | None) -> Any:
        if value is None:
            raise ValueError(f"a record without a value is no {name}")
        try:
            return decode(value)
        except ValueError as fault:  # the base of msgspec's and pydantic's errors
            raise ValueError(f"not {with_article(name)}: {fault}") from fault

    return read
