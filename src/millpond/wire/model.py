"""What a message is in Python: classes built from schemas, whose code for a version is made on its first use."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from types import TracebackType
from typing import Any, ClassVar, Self

from millpond.base.errors import MalformedMessage
from millpond.base.ports import Buffer, ReplyPart
from millpond.wire import generator, notation, runtime
from millpond.wire.decoder import DecoderGenerator
from millpond.wire.encoder import EncoderGenerator

Decoder = Callable[[memoryview, int, int, int], tuple[Any, int]]
Encoder = Callable[[Any], list[ReplyPart]]

ITEMS_MAX = 1 << 31
"""No bound but the message's own bytes: for answers of a cluster that one has asked oneself."""


_SECRET_FIELDS = frozenset(
    {"auth_bytes", "hmac", "request_data", "response_data", "salt", "salted_password", "server_key", "stored_key"}
)
"""Of any message: whoever prints one, by mistake or in a traceback, must not print these."""


class Struct:
    """A group of fields. Made with keywords; what is not given has the schema's default."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()
    _values: ClassVar[Callable[[Any], Any]]

    def __init__(self, **values: Any) -> None:
        raise NotImplementedError("built with each class")

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        values = self.__class__._values
        return bool(values(self) == values(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={'(hidden)' if name in _SECRET_FIELDS else repr(getattr(self, name))}" for name in self._names
        )
        return f"{self.__class__.__qualname__}({shown})"


class Message(Struct):
    """A structure that travels by itself, in one of several versions."""

    __slots__ = ()
    API_KEY: ClassVar[int | None] = None
    """The API key of a request or response; of a metadata record, its type."""
    KIND: ClassVar[str]
    VERSIONS: ClassVar[tuple[int, int]]
    FLEXIBLE_FROM: ClassVar[int | None]
    _schema: ClassVar[notation.Message]
    _decoders: ClassVar[dict[int, tuple[Decoder, list[str]]]]
    _encoders: ClassVar[dict[int, tuple[Encoder, list[str]]]]

    @classmethod
    def decode(cls, buffer: Buffer, version: int, position: int = 0, items_max: int = ITEMS_MAX) -> tuple[Self, int]:
        """The message that begins at `position`, and the position after it.

        `items_max` bounds what is built: so many items its lists may have, all together.
        """
        decoder, fields = cls._decoders.get(version) or _compile_decoder(cls, version)
        view = memoryview(buffer)
        try:
            return decoder(view, position, len(view), items_max)
        except (runtime.Bad, struct.error, IndexError, UnicodeDecodeError) as error:
            where = _field_of(error.__traceback__, fields)
            raise MalformedMessage(f"{cls.__name__} v{version} {where}: {error}") from None

    def encode_parts(self, version: int) -> list[ReplyPart]:
        """The bytes of the message in order, each `records` field as parts of its own, uncopied."""
        encoder, fields = self._encoders.get(version) or _compile_encoder(self.__class__, version)
        try:
            return encoder(self)
        except (runtime.Missing, runtime.TooLong, struct.error, TypeError, AttributeError, ValueError) as error:
            where = _field_of(error.__traceback__, fields)
            raise ValueError(f"{self.__class__.__name__} v{version} {where}: {error}") from error

    def encode(self, version: int) -> bytes:
        return runtime.joined(self.encode_parts(version))


def build(message: notation.Message) -> type[Message]:
    """The class of a message, with the classes of its structures as attributes."""
    lines: list[str] = []
    for each in (message.root, *message.structs):
        lines += generator.constructor_lines(each)
    made: dict[str, Any] = dict(runtime.NAMES, UNSET=object())
    exec(compile("\n".join(lines), f"<{message.name}>", "exec"), made)
    extra: dict[str, Any] = {
        "API_KEY": message.key,
        "KIND": message.kind,
        "VERSIONS": tuple(message.versions),
        "FLEXIBLE_FROM": message.flexible_from,
        "_schema": message,
        "_decoders": {},
        "_encoders": {},
    }
    built: type[Message] = _struct_class(message.root, message.name, made, (Message,), extra)
    for each in message.structs:
        inner = _struct_class(each, f"{message.name}.{each.name}", made, (Struct,), {})
        made[f"C_{each.name}"] = inner
        setattr(built, each.name, inner)
    return built


def _struct_class(
    each: notation.Struct, qualname: str, made: dict[str, Any], bases: tuple[type, ...], extra: dict[str, Any]
) -> Any:
    names = tuple(field.name for field in each.fields)
    members = {
        "__slots__": names,
        "__init__": made[f"init_{each.name}"],
        "__module__": "millpond.wire.messages",
        "__qualname__": qualname,
        "_names": names,
        "_values": staticmethod(attrgetter(*names) if names else lambda _: ()),
        **extra,
    }
    return type(each.name, bases, members)


def _compile_decoder(cls: type[Message], version: int) -> tuple[Decoder, list[str]]:
    if not cls._schema.versions.has(version):
        raise MalformedMessage(f"{cls.__name__} has no version {version}")
    source = DecoderGenerator(cls._schema, version).generate()
    decoder = cls._decoders[version] = (_compiled(cls, source, f"decode v{version}")["decode"], source.fields)
    return decoder


def _compile_encoder(cls: type[Message], version: int) -> tuple[Encoder, list[str]]:
    if not cls._schema.versions.has(version):
        raise ValueError(f"{cls.__name__} has no version {version}")
    source = EncoderGenerator(cls._schema, version).generate()
    encoder = cls._encoders[version] = (_compiled(cls, source, f"encode v{version}")["encode"], source.fields)
    return encoder


def _compiled(cls: type[Message], source: generator.Source, title: str) -> dict[str, Any]:
    scope: dict[str, Any] = {**runtime.NAMES, **source.names}
    for name, each in source.structs.items():
        scope[name] = cls if each is cls._schema.root else getattr(cls, each.name)
    exec(compile(source.text, f"<{cls.__name__} {title}>", "exec"), scope)
    return scope


def _field_of(traceback: TracebackType | None, fields: list[str]) -> str:
    """Which field the generated line that failed is about."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith("<"):
            return fields[traceback.tb_lineno - 1]
        traceback = traceback.tb_next
    return "unknown field"
