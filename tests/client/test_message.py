"""Messages: values, headers, and what can be asked of them."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import FrozenInstanceError, asdict, dataclass, replace
from datetime import UTC, datetime

import pytest

from millpond import DecodeFailed, Delivery, Message
from millpond.client.message import as_bytes, header_list, make_delivery
from millpond.wire.kernel import read_messages


def a_message(value: bytes | None = b"{}", **more) -> Message:
    return Message("orders", 2, 41, **{"value": value, **more})


@dataclass
class Order:
    id: int


def test_a_payload_is_read_as_asked() -> None:
    message = a_message(b'{"id": 7}')
    assert message.json() == {"id": 7}
    assert message.text() == '{"id": 7}'
    assert message.as_(Order) == Order(7)
    assert message.as_(dict) == {"id": 7}


@pytest.mark.parametrize("value", [None, b"{", b"\xff\xfe"])
def test_what_is_no_json_says_which_record(value: bytes | None) -> None:
    with pytest.raises(DecodeFailed, match=r"orders\[2\]@41"):
        a_message(value).json()


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(DecodeFailed, match="UTF-8"):
        a_message(b"\xff").text()


def test_the_last_header_of_a_name_counts() -> None:
    message = a_message(headers=(("a", b"1"), ("b", None), ("a", b"2")))
    assert message.header("a") == b"2"
    assert message.header("b") is None
    assert message.header("c") is None


def test_the_time() -> None:
    assert a_message().time is None
    assert a_message(timestamp_ms=1_700_000_000_500).time == datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC)


def test_headers_and_keys_come_in_many_shapes() -> None:
    assert header_list({"a": "text", "b": b"bytes", "c": None}) == [("a", b"text"), ("b", b"bytes"), ("c", None)]
    assert header_list([("a", "1"), ("a", "2")]) == [("a", b"1"), ("a", b"2")]
    assert (as_bytes("ü"), as_bytes(b"x"), as_bytes(None)) == ("ü".encode(), b"x", None)


class Raw:
    """A record as librdkafka gives it."""

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 41

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return None

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("a", b"1")]


def test_what_is_made_the_quick_way_is_like_any_other() -> None:
    made: list[Message] = []
    read_messages([Raw()], Message, made)
    pairs = [
        (made[0], Message("orders", 2, 41, 5, b"k", None, (("a", b"1"),))),
        (make_delivery("orders", 2, None, 5), Delivery("orders", 2, None, 5)),
    ]
    for quick, plain in pairs:
        assert type(quick) is type(plain)
        assert quick == plain
        assert (hash(quick), repr(quick), asdict(quick)) == (hash(plain), repr(plain), asdict(plain))
        assert replace(quick, partition=3) == replace(plain, partition=3)
        assert copy(quick) == pickle.loads(pickle.dumps(quick)) == plain
        with pytest.raises(FrozenInstanceError):
            quick.partition = 4  # type: ignore[misc]
