"""Values to bytes and back."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ConfigError, DecodeFailed, Message, MissingExtra
from millpond.client.payloads import decoder_for, encode, registry_decoder, registry_serializer

pydantic = pytest.importorskip("pydantic")


class Struct(msgspec.Struct):
    id: int
    name: str = ""


@dataclass
class Data:
    id: int
    name: str = ""


class Model(pydantic.BaseModel):
    id: int
    name: str = ""


def message(value: bytes | None) -> Message:
    return Message("orders", 0, 5, value=value)


@pytest.mark.parametrize("kind", [Struct, Data, Model])
def test_models_go_there_and_back(kind: Any) -> None:
    value = kind(id=7, name="ü")
    encoded = encode(value)
    assert encoded is not None
    assert decoder_for(kind)(message(encoded)) == value


@pytest.mark.parametrize("kind", [Struct, Data, Model, dict, list, int, dict[str, int]])
@pytest.mark.parametrize("bad", [None, b"", b"{", b'{"id": "x"}', b'"text"', b"\xff"])
def test_what_does_not_fit_is_refused_with_its_place(kind: Any, bad: bytes | None) -> None:
    if kind is dict and bad == b'{"id": "x"}':
        pytest.skip("that is a dict")
    with pytest.raises(DecodeFailed, match=r"orders\[0\]@5"):
        decoder_for(kind)(message(bad))


def test_plain_types_are_left_alone() -> None:
    assert encode(b"x") == b"x"
    assert encode(None) is None
    assert encode("ü") == "ü".encode()
    assert encode(bytearray(b"x")) == b"x"
    assert decoder_for(bytes)(message(None)) is None
    assert decoder_for(str)(message("ü".encode())) == "ü"
    assert decoder_for(Message)(message(b"x")) == message(b"x")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each), max_leaves=5))
def test_json_goes_there_and_back(value: Any) -> None:
    if isinstance(value, str | None):
        return
    assert decoder_for(Any)(message(encode(value))) == value


def test_a_value_that_cannot_be_sent_says_so() -> None:
    with pytest.raises(ConfigError, match="serializer"):
        encode(object())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(MissingExtra, match="msgspec"):
        encode(Data(1))


def test_a_schema_registry_fits_in() -> None:
    """Avro's serializers have this shape: a value and a context with the topic."""
    serializer = registry_serializer(lambda value, context: f"{context.topic}:{value}".encode())
    assert serializer(7, "orders") == b"orders:7"
    decode = registry_decoder(lambda data, _context: int(data.split(b":")[1]))
    assert decode(message(b"orders:7")) == 7
    with pytest.raises(DecodeFailed):
        decode(message(b"nonsense"))


def test_dates_decimals_and_uuids_in_a_dict_are_sent_as_text() -> None:
    value = {"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "price": Decimal("1.10"), "id": UUID(int=7)}
    assert json.loads(encode(value) or b"") == {
        "at": "2026-01-02T03:04:05+00:00",
        "price": "1.10",
        "id": "00000000-0000-0000-0000-000000000007",
    }


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_json_cannot_say_is_refused(number: float) -> None:
    with pytest.raises(ConfigError, match="cannot be sent as JSON"):
        encode({"total": number})
