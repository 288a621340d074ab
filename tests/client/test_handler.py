"""Handlers: what they take, what they send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from millpond import ConfigError, DecodeFailed, Message, Send
from millpond.client.handler import Handler

MESSAGE = Message("orders", 0, 1, key=b"k", value=b'{"id": 7}')


class Order(msgspec.Struct):
    id: int


def test_the_annotation_says_what_the_handler_gets() -> None:
    got: list[Any] = []

    def plain(message):  # type: ignore[no-untyped-def]
        got.append(message)

    def whole(message: Message) -> None:
        got.append(message)

    def typed(order: Order) -> None:
        got.append(order)

    def both(order: Order, message: Message) -> None:
        got.append((order, message))

    def with_default(order: dict, flag: bool = True) -> None:  # type: ignore[type-arg]
        got.append((order, flag))

    for each in (plain, whole, typed, both, with_default):
        assert Handler(each).run(MESSAGE) == []
    assert got == [MESSAGE, MESSAGE, Order(7), (Order(7), MESSAGE), ({"id": 7}, True)]


def test_a_store_s_unit_is_given_to_who_asks() -> None:
    def wants(order: Order, message: Message, unit: Any) -> Send:
        return Send("out", f"{order.id} {message.offset} {unit}")

    handler = Handler(wants)
    assert handler.takes_unit
    assert handler.run(MESSAGE, "unit")[0].value == b"7 1 unit"
    assert not Handler(lambda _message: None).takes_unit


def test_objects_with_call_are_handlers_too() -> None:
    class Charge:
        def __call__(self, order: Order) -> Send:
            return Send("out", order)

    assert Handler(Charge()).run(MESSAGE)[0].value == b'{"id":7}'


def test_what_is_returned_or_yielded_is_sent_encoded() -> None:
    def one(message: Message) -> Send:
        return Send("out", {"a": 1}, "key", {"h": "1"}, 3)

    def some(message: Message) -> list[Send]:
        return [Send("out", b"1"), Send("out", b"2")]

    def many(message: Message) -> Iterator[Send]:
        yield Send("out", "1")
        yield Send("out", None)

    assert Handler(one).run(MESSAGE) == [Send("out", b'{"a":1}', b"key", [("h", b"1")], 3)]
    assert [each.value for each in Handler(some).run(MESSAGE)] == [b"1", b"2"]
    assert [each.value for each in Handler(many).run(MESSAGE)] == [b"1", None]


def test_async_handlers_and_generators() -> None:
    async def one(order: Order) -> Send:
        await asyncio.sleep(0)
        return Send("out", order.id)

    async def many(order: Order) -> AsyncIterator[Send]:
        yield Send("out", order.id)
        yield Send("out", order.id + 1)

    for function, values in ((one, [b"7"]), (many, [b"7", b"8"])):
        handler = Handler(function)
        assert handler.is_async
        assert [each.value for each in asyncio.run(handler.run_async(MESSAGE))] == values


@pytest.mark.parametrize("wrong", [{"a": 1}, b"bytes", "text", 5, [1, 2]])
def test_what_cannot_be_sent_is_a_fault_of_the_handler(wrong: Any) -> None:
    with pytest.raises(TypeError, match="Send"):
        Handler(lambda _message: wrong).run(MESSAGE)


def test_a_bad_payload_never_reaches_the_function() -> None:
    def never(order: Order) -> None:
        raise AssertionError

    with pytest.raises(DecodeFailed):
        Handler(never).run(Message("orders", 0, 0, value=b"no"))


def test_a_custom_decoder() -> None:
    seen: list[Any] = []
    Handler(seen.append, decoder=lambda message: message.offset * 2).run(MESSAGE)
    Handler(seen.append, payload=Order).run(MESSAGE)
    assert seen == [2, Order(7)]


def test_handlers_that_cannot_be_are_refused() -> None:
    class Local:
        pass

    def unresolved(order: Local) -> None: ...

    with pytest.raises(ConfigError, match="payload="):
        Handler(unresolved)
    with pytest.raises(ConfigError, match="no argument"):
        Handler(lambda: None)
    with pytest.raises(ConfigError, match="too many arguments"):
        Handler(lambda _a, _b, _c: None)
