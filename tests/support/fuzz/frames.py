"""Requests from the schemas as flat lists of tokens, and many mutations of them.

A token is (kind, field, bytes): a value, or the count that opens an array. The joined bytes are a request; a mutation
changes a known token, so that the rest stays valid and is still decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from millpond.broker.apis import APIS
from millpond.wire import messages
from millpond.wire.header import FLEXIBLE_FROM, NEVER, encode_request_header
from millpond.wire.notation import Field, Message, Struct
from millpond.wire.runtime import varint
from support.fuzz.pools import ALIASES, CLIENT_IDS, INTEGER_BITS, NODE_CLIENT_IDS, Pools, fit

Token = tuple[str, str, bytes]
Write = Callable[[list[Token]], None]

HEADER_TOKENS = 4
"""Key, version, correlation id and client id; flexible versions have tags as well."""

CORRELATION = 2
LENGTH = struct.Struct(">i")
REFRESHED_MAX = 8
"""How many tokens of a corpus request are refreshed."""

LONG_ITEMS = 3000
BRIEF_FROM = 100
"""The items of a longer list are short: otherwise the campaign's own memory would be measured."""

LONG_SHARE = 0.001
"""The share of requests with one long list."""


TWICE_SHARE = 0.3
"""The share of list items, after the first, that repeat the previous one."""


class FrameMaker:
    """Generates requests of supported and unsupported APIs, from one seed."""

    def __init__(self, draw: Random, pools: Pools, keys: tuple[int, ...]) -> None:
        self._draw = draw
        self._random = draw.random
        self._pools = pools
        self._keys = keys
        self._versions = {api.key: api.versions for api in APIS}
        self._writers: dict[tuple[int, int], Write] = {}
        self._until_long = 0
        """Arrays until the long one; 0 if none is long."""
        self.long_items = LONG_ITEMS
        self._correlation_id = 0
        self._cid = b""

    # Whole requests

    def long(self, key: int, array: int) -> list[Token]:
        """A request whose array with this number is long."""
        return self.fresh(key, array)

    def fresh(self, key: int | None = None, long_array: int = 0) -> list[Token]:
        """A request that decodes, with some fields at their limits."""
        if key is None:
            key = self._keys[int(self._random() * len(self._keys))]
        low, high = self._versions.get(key, messages.request_class(key).VERSIONS)
        version = high if self._random() < 0.4 else low + int(self._random() * (high - low + 1))
        self._until_long = 1 + int(self._random() * 4) if self._random() < LONG_SHARE else long_array
        tokens = self.header(key, version)
        writer = self._writers.get((key, version))
        if writer is None:
            writer = self._writers[key, version] = self._compile(key, version)
        writer(tokens)
        return tokens

    def decent(self, request: messages.Message, version: int) -> bytes:
        """A well-formed request of the caller's, under a new correlation id."""
        assert request.API_KEY is not None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return encode_request_header(request.API_KEY, version, self._correlation_id, "fuzz") + request.encode(version)

    def header(self, key: int, version: int) -> list[Token]:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        names = CLIENT_IDS if self._random() < 0.9 else NODE_CLIENT_IDS
        client = names[int(self._random() * len(names))].encode()
        tokens: list[Token] = [
            ("int16", "key", fit(key, "int16")),
            ("int16", "version", fit(version, "int16")),
            ("int32", "correlation", self._correlation_id.to_bytes(4, "big")),
            ("string", "client_id", len(client).to_bytes(2, "big") + client),
        ]
        if version >= FLEXIBLE_FROM.get(key, NEVER):
            tokens.append(("tags", "header", b"\0"))
        return tokens

    def again(self, tokens: list[Token]) -> list[Token]:
        """A corpus request adapted to the current run: with a new correlation id and ids that exist now."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        fresh = list(tokens)
        if len(fresh) > CORRELATION:
            fresh[CORRELATION] = ("int32", "correlation", self._correlation_id.to_bytes(4, "big"))
        body = len(fresh) - HEADER_TOKENS
        for _ in range(min(body // 2, REFRESHED_MAX)):
            at = HEADER_TOKENS + int(self._random() * body)
            kind, field, _ = fresh[at]
            if kind == "uuid":
                fresh[at] = (kind, field, self._pools.uuid(field))
            elif kind in INTEGER_BITS and self._random() < 0.2:
                fresh[at] = (kind, field, self._pools.integer(field, kind))
        return fresh

    # Mutations

    def spoilt(self, tokens: list[Token]) -> list[Token]:
        """The request with one to three errors, under a new correlation id."""
        tokens = list(tokens)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if len(tokens) > CORRELATION:
            tokens[CORRELATION] = ("int32", "correlation", self._correlation_id.to_bytes(4, "big"))
        times = 1 if self._random() < 0.6 else 2 + int(self._random() * 2)
        for _ in range(times):
            self._spoil(tokens)
        return tokens

    def bytes_of(self, tokens: list[Token]) -> bytes:
        """Its bytes, sometimes truncated, with trailing data, or with one byte changed."""
        data = b"".join([token[2] for token in tokens])
        chance = self._random()
        if chance < 0.06:
            data = data[: int(self._random() * len(data))]
        elif chance < 0.1:
            data += self._draw.randbytes(1 + int(self._random() * 8))
        elif chance < 0.16 and data:
            changed = bytearray(data)
            changed[int(self._random() * len(data))] = int(self._random() * 256)
            data = bytes(changed)
        return data

    def _spoil(self, tokens: list[Token]) -> None:
        if not tokens:
            return
        # Rarely in the header: errors there are found first.
        first = HEADER_TOKENS if len(tokens) > HEADER_TOKENS and self._random() < 0.95 else 0
        at = first + int(self._random() * (len(tokens) - first))
        kind, field, data = tokens[at]
        chance = self._random()
        if chance < 0.70:
            tokens[at] = (kind, field, self._other(kind, field, data))
        elif chance < 0.76:
            del tokens[at]
        elif chance < 0.82:
            tokens.insert(at, tokens[at])
        elif chance < 0.88:
            other = first + int(self._random() * (len(tokens) - first))
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif chance < 0.94:
            end = at + 1 + int(self._random() * 8)
            tokens[at:at] = tokens[at:end] * (1 + int(self._random() * 3))
        else:
            del tokens[at : at + 1 + int(self._random() * 8)]

    def _other(self, kind: str, field: str, data: bytes) -> bytes:
        pools = self._pools
        if kind in INTEGER_BITS:
            return pools.integer_at_limit(kind) if self._random() < 0.5 else pools.integer(field, kind)
        if kind == "bool":
            return bytes((int(self._random() * 4) * 85,))
        if kind == "uuid":
            return pools.uuid(field)
        if kind == "float64":
            return pools.one_of(_DOUBLES)
        if kind == "tags":
            return pools.one_of(_TAGS)
        if kind.endswith("string") and self._random() < 0.4:
            return _prefixed(pools.text(field), kind)
        if kind.endswith("bytes") and self._random() < 0.4:
            return _prefixed(pools.records() if field == "records" else pools.blob(field), kind)
        if kind in ("count", "string", "bytes"):
            wide = 2 if kind == "string" else 4
            lie = (
                pools.integer_at_limit("int16" if wide == 2 else "int32") if self._random() < 0.7 else b"\xff" * wide
            )
            return lie + data[wide:]
        if kind in ("compact_count", "compact_string", "compact_bytes"):
            return pools.one_of(_VARINTS) + data[1:]
        return data

    # From a schema to a function that writes tokens

    def _compile(self, key: int, version: int) -> Write:
        message = messages.request_class(key)._schema
        return self._struct(message, message.root, version)

    def _struct(self, message: Message, struct_: Struct, version: int) -> Write:
        flexible = message.is_flexible(version)
        plain = [each for each in struct_.fields if each.versions.has(version) and (each.tag is None or not flexible)]
        tagged = [each for each in struct_.fields if each.versions.has(version) and each.tag is not None and flexible]
        writers = [self._field(message, each, version) for each in plain]
        tags = self._tags(message, sorted(tagged, key=lambda each: each.tag or 0), version) if flexible else None

        def write(tokens: list[Token]) -> None:
            for writer in writers:
                writer(tokens)
            if tags is not None:
                tags(tokens)

        return write

    def _tags(self, message: Message, tagged: list[Field], version: int) -> Write:
        writers = [(each.tag or 0, self._field(message, each, version)) for each in tagged]

        def write(tokens: list[Token]) -> None:
            if not writers or self._random() < 0.6:
                tokens.append(("tags", "tags", b"\0"))
                return
            body = b""
            number = 0
            for tag, writer in writers:
                if self._random() < 0.7:
                    inner: list[Token] = []
                    writer(inner)
                    value = b"".join([token[2] for token in inner])
                    body += varint(tag) + varint(len(value)) + value
                    number += 1
            tokens.append(("tags", "tags", varint(number) + body))

        return write

    def _field(self, message: Message, field: Field, version: int) -> Write:
        flexible = message.is_flexible(version)
        nullable = field.is_nullable(version)
        if field.is_array:
            return self._array(message, field, version, nullable, flexible)
        if field.struct is not None:
            inner = self._struct(message, field.struct, version)
            return self._nullable_struct(field.name, inner) if nullable else inner
        return self._value(field.name, field.type, nullable, flexible)

    def _nullable_struct(self, name: str, inner: Write) -> Write:
        def write(tokens: list[Token]) -> None:
            if self._random() < 0.3:
                tokens.append(("int8", name, b"\xff"))
            else:
                tokens.append(("int8", name, b"\1"))
                inner(tokens)

        return write

    def _array(self, message: Message, field: Field, version: int, nullable: bool, flexible: bool) -> Write:
        if field.struct is not None:
            item = self._struct(message, field.struct, version)
        else:
            item = self._value(field.name, field.type, False, flexible)
        name = field.name
        kind = "compact_count" if flexible else "count"
        pools = self._pools

        def write(tokens: list[Token]) -> None:
            chance = self._random()
            if nullable and chance < 0.1:
                tokens.append((kind, name, b"\0" if flexible else b"\xff\xff\xff\xff"))
                return
            count = 1 if chance < 0.7 else int(self._random() * 4)
            if self._until_long:
                self._until_long -= 1
                if not self._until_long:
                    count = self.long_items
            tokens.append((kind, name, varint(count + 1) if flexible else count.to_bytes(4, "big")))
            was_brief, pools.is_brief = pools.is_brief, pools.is_brief or count > BRIEF_FROM
            first = last = len(tokens)
            for _ in range(count):
                if last > first and self._random() < TWICE_SHARE:
                    # A repeated item: code that counts responses may not expect it.
                    tokens += tokens[first:last]
                    continue
                first = len(tokens)
                item(tokens)
                last = len(tokens)
            pools.is_brief = was_brief

        return write

    def _value(self, name: str, kind: str, nullable: bool, flexible: bool) -> Write:
        pools = self._pools
        name = ALIASES.get(name, name)
        if kind in INTEGER_BITS:
            return lambda tokens: tokens.append((kind, name, pools.integer(name, kind)))
        if kind == "bool":
            return lambda tokens: tokens.append((kind, name, b"\1" if self._random() < 0.5 else b"\0"))
        if kind == "uuid":
            return lambda tokens: tokens.append((kind, name, pools.uuid(name)))
        if kind == "float64":
            return lambda tokens: tokens.append((kind, name, pools.one_of(_DOUBLES)))
        make = {"string": lambda: pools.text(name), "bytes": lambda: pools.blob(name), "records": pools.records}[kind]
        wide = 2 if kind == "string" else 4
        plain_kind = "string" if kind == "string" else "bytes"
        token_kind = f"compact_{plain_kind}" if flexible else plain_kind

        def write(tokens: list[Token]) -> None:
            if nullable and self._random() < 0.3:
                tokens.append((token_kind, name, b"\0" if flexible else b"\xff" * wide))
                return
            tokens.append((token_kind, name, _prefixed(make(), token_kind)))

        return write


def _prefixed(data: bytes, kind: str) -> bytes:
    """Prefixed with its length."""
    if kind.startswith("compact_"):
        return varint(len(data) + 1) + data
    wide = 2 if kind == "string" else 4
    return (len(data) & ((1 << wide * 8) - 1)).to_bytes(wide, "big") + data


_DOUBLES = tuple(
    struct.pack(">d", value)
    for value in (0.0, -0.0, 1.0, -1.0, 1e308, float("inf"), float("-inf"), float("nan"), 1e-320)
)
_VARINTS = (
    b"\0",
    b"\1",
    b"\2",
    b"\x7f",
    b"\x80\1",
    b"\xff\x7f",
    b"\xff\xff\3",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x08",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x00",
)
_TAGS = (
    b"\0",
    b"\1\0\0",
    b"\1\5\1x",
    b"\1\0\x7f",
    b"\2\0\1\0\0\1\1",
    b"\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\1\xff\xff\xff\xff\x0f\0",
    b"\1\0\xff\xff\xff\xff\x07",
    b"\3\1\0\1\0\1\0",
)
