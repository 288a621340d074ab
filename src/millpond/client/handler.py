"""Call a handler: its annotations choose its arguments, and what it returns is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

from millpond.base.words import with_article
from millpond.client.checks import INT32_MAX, check_callable, check_topic, check_whole
from millpond.client.errors import ConfigError
from millpond.client.message import Message, Send, as_bytes, header_list
from millpond.client.payloads import Decoder, Serializer, decoder_for, encode


class Handler:
    """The first parameter is the payload, decoded to its annotation, or the Message if annotated so or not at all.

    Another parameter annotated Message gets the message; any other gets the unit of the store of processed ids.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        payload: Any = None,
        decoder: Decoder | None = None,
        serializer: Serializer = encode,
    ) -> None:
        check_callable(function, "a handler")
        check_callable(serializer, "serializer")
        if decoder is not None:
            check_callable(decoder, "decoder")
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self._function = function
        self._serializer = serializer
        self.is_async = _is_async(function)
        parameters = _positional(function)
        if not parameters:
            raise ConfigError(f"{self.name} takes no argument: a handler takes the message or its payload")
        hints = _hints(function, needed=payload is None and decoder is None)
        kind = payload or hints.get(parameters[0], Message)
        self._decode = decoder or decoder_for(kind)
        self._further = [hints.get(each) is Message for each in parameters[1:]]
        if self._further.count(False) > 1:
            raise ConfigError(f"{self.name} takes too many arguments: payload, Message and one unit at most")

    @property
    def takes_unit(self) -> bool:
        return False in self._further

    def run(self, message: Message, unit: Any = None) -> list[Send]:
        """Run a plain function and return its Sends, encoded."""
        if self._further:
            returned = self._function(*self._arguments(message, unit))
        else:
            returned = self._function(self._decode(message))
        return [] if returned is None else [self._encoded(each) for each in _sends(returned, self.name)]

    async def run_async(self, message: Message) -> list[Send]:
        returned = self._function(*self._arguments(message, None))
        if hasattr(returned, "__aiter__"):
            return [self._encoded(_send(each, self.name)) async for each in returned]
        result = await returned
        return [] if result is None else [self._encoded(each) for each in _sends(result, self.name)]

    def _arguments(self, message: Message, unit: Any) -> list[Any]:
        return [self._decode(message), *(message if is_message else unit for is_message in self._further)]

    def _encoded(self, send: Send) -> Send:
        check_topic(send.topic)
        if send.partition is not None:
            check_whole(send.partition, "a partition", 0, INT32_MAX)
        value = self._serializer(send.value, send.topic)
        if value is not None and not isinstance(value, bytes):
            raise ConfigError(f"the serializer returned {type(value).__name__}: it must return bytes or None")
        return Send(send.topic, value, as_bytes(send.key), header_list(send.headers), send.partition)


def _sends(returned: Any, name: str) -> Iterable[Send]:
    if returned is None:
        return ()
    if isinstance(returned, Send):
        return (returned,)
    if isinstance(returned, str | bytes | dict) or not isinstance(returned, Iterable):
        raise TypeError(
            f"{name} returned {with_article(type(returned).__name__)}: return None, a Send, or several of them"
        )
    return (_send(each, name) for each in returned)


def _send(value: Any, name: str) -> Send:
    if not isinstance(value, Send):
        raise TypeError(f"{name} returned {with_article(type(value).__name__)} to send: return Send(topic, value)")
    return value


def _is_async(function: Callable[..., Any]) -> bool:
    target = _called(function)
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    return function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004


def _positional(function: Callable[..., Any]) -> list[str]:
    """The required parameters."""
    return [
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]


def _hints(function: Callable[..., Any], needed: bool) -> dict[str, Any]:
    try:
        return get_type_hints(_called(function))
    except NameError as fault:
        if not needed:
            return {}
        raise ConfigError(
            f"the annotations of {getattr(function, '__qualname__', function)} cannot be resolved ({fault}): pass "
            "the payload's type as payload=…, or define it at the top of the module"
        ) from fault
