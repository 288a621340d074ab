"""Serialize values and decode messages: plain types, JSON, msgspec, dataclasses, pydantic, Avro and others.

A serializer is any callable `(value, topic) -> bytes | None`, a decoder any callable `(message) -> value`.
`registry_serializer` and `registry_decoder` adapt those of confluent-kafka's schema registry client (Avro, Protobuf,
JSON Schema).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import is_dataclass
from datetime import date
from datetime import time as dt_time
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from millpond.client.checks import encoded
from millpond.client.errors import ConfigError, DecodeFailed
from millpond.client.message import Message
from millpond.client.values import msgspec_module, reader_of

Serializer: TypeAlias = Callable[[Any, str], "bytes | None"]
Decoder: TypeAlias = Callable[[Message], Any]


def encode(value: Any, topic: str = "") -> bytes | None:
    """bytes and None unchanged, text as UTF-8, a model by its own serializer, everything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return encoded(value, "a value")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "model_dump_json"):
        dumped: str = value.model_dump_json()
        return dumped.encode()
    if hasattr(value, "__struct_fields__") or is_dataclass(value):
        packed: bytes = msgspec_module().json.encode(value)
        return packed
    try:
        # JSON has no NaN or Infinity; parsers other than Python's refuse them.
        return json.dumps(value, separators=(",", ":"), default=_json_value, allow_nan=False).encode()
    except (TypeError, ValueError) as fault:
        raise ConfigError(
            f"a value of type {type(value).__name__} cannot be sent as JSON ({fault}): send bytes, or give the "
            "producer a serializer"
        ) from fault


def _json_value(value: object) -> str:
    """Dates and times as ISO 8601, Decimal and UUID as text, like msgspec and pydantic."""
    if isinstance(value, date | dt_time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def decoder_for(kind: Any) -> Decoder:
    """Decodes messages to `kind`; DecodeFailed if a value does not fit."""
    if kind is Message:
        return lambda message: message
    # Report a missing package now, not at the first record.
    reader_of(kind)
    return lambda message: message.as_(kind)


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
