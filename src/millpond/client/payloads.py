"""From values to bytes and back: plain types, JSON, msgspec, dataclasses, pydantic, and a seam for Avro and others.

A serializer is any callable `(value, topic) -> bytes | None`, a decoder any callable `(message) -> value`. The ones
of confluent-kafka's schema registry client (Avro, Protobuf, JSON Schema) fit through `registry_serializer` and
`registry_decoder`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeAlias

from millpond.client.errors import ConfigError, DecodeFailed, needs
from millpond.client.message import Message

Serializer: TypeAlias = Callable[[Any, str], "bytes | None"]
Decoder: TypeAlias = Callable[[Message], Any]


def encode(value: Any, topic: str = "") -> bytes | None:
    """bytes and None as they are, text as UTF-8, a model by its own means, everything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "model_dump_json"):
        dumped: str = value.model_dump_json()
        return dumped.encode()
    if hasattr(value, "__struct_fields__") or is_dataclass(value):
        packed: bytes = _msgspec().json.encode(value)
        return packed
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as fault:
        raise ConfigError(
            f"a value of type {type(value).__name__} cannot be sent as JSON ({fault}): send bytes, or give the "
            "producer a serializer"
        ) from fault


@cache
def decoder_for(kind: Any) -> Decoder:
    """How a message becomes a `kind`. What does not fit is DecodeFailed."""
    if kind is Message:
        return lambda message: message
    if kind is bytes:
        return lambda message: message.value
    if kind is str:
        return Message.text
    if kind is Any:
        return Message.json
    if hasattr(kind, "model_validate_json"):
        return _guarded(kind, kind.model_validate_json)
    if kind in (dict, list, int, float, bool):
        return lambda message: _checked(message, kind)
    return _guarded(kind, _msgspec().json.Decoder(kind).decode)


def registry_serializer(serializer: Callable[[Any, Any], bytes | None]) -> Serializer:
    """A serializer of confluent-kafka's schema registry client, for `Producer(serializer=…)`."""
    from confluent_kafka.serialization import MessageField, SerializationContext

    return lambda value, topic: serializer(value, SerializationContext(topic, MessageField.VALUE))


def registry_decoder(deserializer: Callable[[Any, Any], Any]) -> Decoder:
    """A deserializer of confluent-kafka's schema registry client, for `@worker(decoder=…)`."""
    from confluent_kafka.serialization import MessageField, SerializationContext

    def decode(message: Message) -> Any:
        context = SerializationContext(message.topic, MessageField.VALUE, list(message.headers))
        try:
            return deserializer(message.value, context)
        except Exception as fault:
            raise DecodeFailed(f"{message}: {fault}") from fault

    return decode


def _checked(message: Message, kind: type) -> Any:
    value = message.json()
    if not isinstance(value, kind):
        raise DecodeFailed(f"{message}: expected a {kind.__name__}, not a {type(value).__name__}")
    return value


def _guarded(kind: Any, decode: Callable[[bytes], Any]) -> Decoder:
    name = getattr(kind, "__name__", str(kind))

    def decode_message(message: Message) -> Any:
        if message.value is None:
            raise DecodeFailed(f"{message}: a record without a value is no {name}")
        try:
            return decode(message.value)
        except ValueError as fault:  # msgspec's and pydantic's errors both are
            raise DecodeFailed(f"{message}: not a {name}: {fault}") from fault

    return decode_message


def _msgspec() -> Any:
    try:
        import msgspec
        import msgspec.json
    except ImportError as fault:
        raise needs("msgspec", "client") from fault
    return msgspec
