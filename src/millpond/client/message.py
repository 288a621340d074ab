"""Records as the client reads them and as handlers send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar, cast

from millpond.base.ids import TopicPartition
from millpond.client.checks import check_text, encoded
from millpond.client.errors import ConfigError, DecodeFailed
from millpond.client.values import json_of, reader_of, text_of

T = TypeVar("T")
U = TypeVar("U")

Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = tuple[Header, ...]
HeadersLike: TypeAlias = Mapping[str, "str | bytes | None"] | Sequence[tuple[str, "str | bytes | None"]]


@dataclass(slots=True, frozen=True)
class Message:
    """One record as read. The value stays bytes until it is decoded."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = -1
    """Milliseconds since 1970; -1 if the record has no timestamp."""
    key: bytes | None = None
    value: bytes | None = None
    """None is a tombstone: in a compacted topic it deletes the key."""
    headers: Headers = ()

    @property
    def time(self) -> datetime | None:
        return None if self.timestamp_ms < 0 else datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    def header(self, name: str) -> bytes | None:
        """The last header with this name, or None."""
        return next((value for each, value in reversed(self.headers) if each == name), None)

    def text(self) -> str:
        return self._read(text_of)

    def json(self) -> Any:
        return self._read(json_of)

    def as_(self, kind: type[T]) -> T:
        """The value as a bytes, str, dict, dataclass, msgspec.Struct or pydantic model."""
        read: T = self._read(reader_of(cast(Any, kind)))
        return read

    def _read(self, read: Callable[[bytes | None], U]) -> U:
        try:
            return read(self.value)
        except ValueError as fault:
            raise DecodeFailed(f"{self}: {fault}") from fault

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(slots=True, frozen=True)
class Send:
    """A record for a handler to send: return one, or return or yield several."""

    topic: str
    value: Any = None
    key: str | bytes | None = None
    headers: HeadersLike = field(default_factory=tuple)
    partition: int | None = None


@dataclass(slots=True, frozen=True)
class Delivery:
    """Where a sent record was written. The offset is None with acks=0, where the broker does not answer."""

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int


def partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


class _FreshDelivery:
    """A mutable Delivery. A frozen dataclass takes five times as long to construct, once per sent record, so this
    one is filled and then turned into a Delivery."""

    __slots__ = tuple(each.name for each in fields(Delivery))

    def __init__(self, topic: str, partition: int, offset: int | None, timestamp_ms: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms


def make_delivery(topic: str, partition: int, offset: int | None, timestamp_ms: int) -> Delivery:
    fresh: Any = _FreshDelivery(topic, partition, offset, timestamp_ms)
    fresh.__class__ = Delivery
    made: Delivery = fresh
    return made


def header_list(headers: HeadersLike) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        listed = [(name, value) for name, value in pairs]
    except (TypeError, ValueError) as fault:
        raise ConfigError(f"headers are a mapping, or pairs of a name and a value, not {headers!r:.60}") from fault
    # librdkafka's binding crashes on a name that is not UTF-8, and stores another one for bytes, None and NUL.
    return [(check_text(name, "a header name"), as_bytes(value, "a header")) for name, value in listed]


def as_bytes(value: object, what: str = "a key") -> bytes | None:
    """Text as UTF-8, bytes unchanged; ConfigError for anything else, before librdkafka sees it."""
    if isinstance(value, str):
        return encoded(value, what)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise ConfigError(f"{what} is text or bytes, not {type(value).__name__}: give str({value!r:.40}), or encode it")
