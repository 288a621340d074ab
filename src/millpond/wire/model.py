"""What a message is in Python: classes built from schemas, whose code for a version is made on its first use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from operator import attrgetter
from types import TracebackType
from typing import Any, ClassVar, Self

from millpond.base.errors import MalformedMessage, TooManyItems
from millpond.base.ports import Buffer, ReplyPart
from millpond.wire import generator, notation, runtime
from millpond.wire.decoder import DecoderGenerator
from millpond.wire.encoder import EncoderGenerator

Decoder = Callable[[memoryview, int, int, int], tuple[Any, int]]
Encoder = Callable[[Any], list[ReplyPart]]
StepDecoder = Callable[[memoryview, int, int, int], Generator[None, None, tuple[Any, int]]]
StepEncoder = Callable[[Any], Generator[None, None, list[ReplyPart]]]

ITEMS_MAX = 1 << 31
"""No bound but the message's own bytes: for answers of a cluster that one has asked oneself."""


_SECRET_FIELDS = frozenset(
    {"auth_bytes", "hmac", "request_data", "response_data", "salt", "salted_password", "server_key", "stored_key"}
)
"""Fields of any message that must not show up in a printed message or a traceback."""


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
    _step_decoders: ClassVar[dict[int, tuple[StepDecoder, list[str]]]]
    _step_encoders: ClassVar[dict[int, tuple[StepEncoder, list[str]]]]

    @classmethod
    def decode(cls, buffer: Buffer, version: int, position: int = 0, items_max: int = ITEMS_MAX) -> tuple[Self, int]:
        """The message that begins at `position`, and the position after it.

        `items_max` bounds what is built: so many items its lists may have, all together.
        """
        decoder, fields = cls._decoders.get(version) or _compile_decoder(cls, version)
        view = memoryview(buffer)
        try:
            return decoder(view, position, len(view), items_max)
        except _UNREADABLE as error:
            raise _malformed(cls, version, error, fields) from None

    @classmethod
    def decode_in_steps(
        cls, buffer: Buffer, version: int, position: int, items_max: int
    ) -> Generator[None, None, tuple[Self, int]]:
        """The same in steps of `runtime.STEP_ITEMS`: it yields where others should have a turn."""
        decoder, fields = cls._step_decoders.get(version) or _compile_step_decoder(cls, version)
        view = memoryview(buffer)
        try:
            return (yield from decoder(view, position, len(view), items_max))
        except _UNREADABLE as error:
            raise _malformed(cls, version, error, fields) from None

    def encode_parts(self, version: int) -> list[ReplyPart]:
        """The bytes of the message in order, each `records` field as parts of its own, uncopied."""
        encoder, fields = self._encoders.get(version) or _compile_encoder(self.__class__, version)
        try:
            return encoder(self)
        except _UNWRITABLE as error:
            raise _unwritable(self.__class__, version, error, fields) from error

    def encode_in_steps(self, version: int) -> Generator[None, None, list[ReplyPart]]:
        """The parts as well, in steps as `decode_in_steps`."""
        encoder, fields = self._step_encoders.get(version) or _compile_step_encoder(self.__class__, version)
        try:
            return (yield from encoder(self))
        except _UNWRITABLE as error:
            raise _unwritable(self.__class__, version, error, fields) from error

    def encode(self, version: int) -> bytes:
        return runtime.joined(self.encode_parts(version))


def build(message: notation.Message) -> type[Message]:
    """The class of a message, with the classes of its structures as attributes."""
    extra: dict[str, Any] = {
        "API_KEY": message.key,
        "KIND": message.kind,
        "VERSIONS": tuple(message.versions),
        "FLEXIBLE_FROM": message.flexible_from,
        "_schema": message,
        "_decoders": {},
        "_encoders": {},
        "_step_decoders": {},
        "_step_encoders": {},
    }

    def begin(self: Any, *args: Any, **values: Any) -> None:
        _make_constructors(message, built)
        self.__init__(*args, **values)

    built: type[Message] = _struct_class(message.root, message.name, begin, (Message,), extra)
    for each in message.structs:
        setattr(built, each.name, _struct_class(each, f"{message.name}.{each.name}", begin, (Struct,), {}))
    return built


def _make_constructors(message: notation.Message, built: Any) -> None:
    """Those of a message and its structures, at the first value: many are only named, or only decoded."""
    lines: list[str] = []
    for each in (message.root, *message.structs):
        lines += generator.constructor_lines(each)
    made: dict[str, Any] = dict(runtime.NAMES, UNSET=object())
    made |= {f"C_{each.name}": getattr(built, each.name) for each in message.structs}
    exec(compile("\n".join(lines), f"<{message.name}>", "exec"), made)
    built.__init__ = made[f"init_{message.root.name}"]
    for each in message.structs:
        getattr(built, each.name).__init__ = made[f"init_{each.name}"]


def _struct_class(
    each: notation.Struct, qualname: str, begin: Any, bases: tuple[type, ...], extra: dict[str, Any]
) -> Any:
    names = tuple(field.name for field in each.fields)
    members = {
        "__slots__": names,
        "__init__": begin,
        "__module__": "millpond.wire.messages",
        "__qualname__": qualname,
        "_names": names,
        "_values": staticmethod(attrgetter(*names) if names else lambda _: ()),
        **extra,
    }
    return type(each.name, bases, members)


def _compile_decoder(cls: type[Message], version: int) -> tuple[Decoder, list[str]]:
    decoder = cls._decoders[version] = _decoder(cls, version, in_steps=False)
    return decoder


def _compile_step_decoder(cls: type[Message], version: int) -> tuple[StepDecoder, list[str]]:
    decoder = cls._step_decoders[version] = _decoder(cls, version, in_steps=True)
    return decoder


def _decoder(cls: type[Message], version: int, *, in_steps: bool) -> tuple[Any, list[str]]:
    if not cls._schema.versions.has(version):
        raise MalformedMessage(f"{cls.__name__} has no version {version}")
    source = DecoderGenerator(cls._schema, version, in_steps=in_steps).generate()
    return _compiled(cls, source, f"decode v{version}")["decode"], source.fields


def _compile_encoder(cls: type[Message], version: int) -> tuple[Encoder, list[str]]:
    encoder = cls._encoders[version] = _encoder(cls, version, in_steps=False)
    return encoder


def _compile_step_encoder(cls: type[Message], version: int) -> tuple[StepEncoder, list[str]]:
    encoder = cls._step_encoders[version] = _encoder(cls, version, in_steps=True)
    return encoder


def _encoder(cls: type[Message], version: int, *, in_steps: bool) -> tuple[Any, list[str]]:
    if not cls._schema.versions.has(version):
        raise ValueError(f"{cls.__name__} has no version {version}")
    source = EncoderGenerator(cls._schema, version, in_steps=in_steps).generate()
    return _compiled(cls, source, f"encode v{version}")["encode"], source.fields


def _compiled(cls: type[Message], source: generator.Source, title: str) -> dict[str, Any]:
    scope: dict[str, Any] = {**runtime.NAMES, **source.names}
    for name, each in source.structs.items():
        scope[name] = cls if each is cls._schema.root else getattr(cls, each.name)
    exec(compile(source.text, f"<{cls.__name__} {title}>", "exec"), scope)
    return scope


_UNREADABLE = (runtime.Bad, struct.error, IndexError, UnicodeDecodeError)
_UNWRITABLE = (runtime.Missing, runtime.TooLong, struct.error, TypeError, AttributeError, ValueError)


def _malformed(cls: type[Message], version: int, error: Exception, fields: list[str]) -> MalformedMessage:
    kind = TooManyItems if isinstance(error, runtime.TooMany) else MalformedMessage
    return kind(f"{cls.__name__} v{version} {_field_of(error.__traceback__, fields)}: {error}")


def _unwritable(cls: type[Message], version: int, error: Exception, fields: list[str]) -> ValueError:
    return ValueError(f"{cls.__name__} v{version} {_field_of(error.__traceback__, fields)}: {error}")


def _field_of(traceback: TracebackType | None, fields: list[str]) -> str:
    """Which field the generated line that failed is about."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith("<"):
            return fields[traceback.tb_lineno - 1]
        traceback = traceback.tb_next
    return "unknown field"
