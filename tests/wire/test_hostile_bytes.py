"""Bytes from a stranger: whatever is flipped, cut or overstated, a decoder says MalformedMessage or succeeds."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from millpond.base.errors import MalformedMessage
from millpond.wire import messages
from millpond.wire.header import NAMES, decode_request_header, encode_request_header
from support.seeds import FIRST, dice

MUTANTS = 100
PEAK_BYTES_MAX = 1 << 20
OVERSTATED = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x80\x00\x00\x00",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\xfe\xff\xff\xff\x07",
    b"\xc3\x28",
)


def mutate(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    position = draw.randrange(len(changed) + 1)
    match draw.randrange(4):
        case 0 if changed:
            changed[position % len(changed)] ^= 1 << draw.randrange(8)
        case 1:
            del changed[position:]
        case 2:
            overstated = draw.choice(OVERSTATED)
            changed[position : position + len(overstated)] = overstated
        case _:
            changed[position:position] = draw.choice(OVERSTATED)
    return bytes(changed)


@pytest.mark.parametrize("api_key", sorted(NAMES))
def test_mutated_requests_are_refused_or_read(api_key: int, random_messages: Any) -> None:
    cls = messages.request_class(api_key)
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
        draw = random.Random(f"{api_key} {version} {FIRST}")
        data = random_messages(f"hostile {api_key} {version}").message(cls, version).encode(version)
        for number in range(MUTANTS):
            mutant = mutate(data, draw)
            try:
                value, position = cls.decode(mutant, version)
            except MalformedMessage:
                continue
            assert position <= len(mutant)
            again = value.encode(version)
            assert cls.decode(again, version)[0].encode(version) == again, (version, number)


@pytest.mark.parametrize("api_key", sorted(NAMES))
def test_every_truncation_is_refused(api_key: int, random_messages: Any) -> None:
    cls = messages.request_class(api_key)
    version = cls.VERSIONS[1]
    data = random_messages(f"cut {api_key}").message(cls, version).encode(version)
    for end in range(min(len(data), 300)):
        with pytest.raises(MalformedMessage):
            cls.decode(data[:end], version)


def test_overstated_lengths_allocate_nothing(random_messages: Any) -> None:
    """Replaces four bytes at every position by huge counts, in every request, and watches what is allocated."""
    draw = dice(0)
    worst = 0
    for api_key in NAMES:
        cls = messages.request_class(api_key)
        for version in cls.VERSIONS:
            data = random_messages(f"peak {api_key} {version}").message(cls, version).encode(version)[:400]
            _try_decode(cls, data, version)
            tracemalloc.start()
            for _ in range(8):
                position = draw.randrange(len(data) + 1)
                _try_decode(cls, data[:position] + draw.choice(OVERSTATED) + data[position + 4 :], version)
            worst = max(worst, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert worst < PEAK_BYTES_MAX


def _try_decode(cls: type[messages.Message], data: bytes, version: int) -> None:
    try:
        cls.decode(data, version)
    except MalformedMessage:
        return


def test_mutated_request_headers() -> None:
    draw = dice(7)
    for api_key in NAMES:
        for version in (0, 5, 15):
            data = encode_request_header(api_key, version, 9, "é client")
            for _ in range(30):
                mutant = mutate(data, draw)
                try:
                    header = decode_request_header(memoryview(mutant))
                except MalformedMessage:
                    continue
                assert header.body_position <= len(mutant)


@pytest.mark.parametrize(
    ("name", "version", "data", "field"),
    [
        ("MetadataRequest", 1, b"\x7f\xff\xff\xff", "topics"),
        ("MetadataRequest", 12, b"\xff\xff\xff\xff\x0f", "topics"),
        ("MetadataRequest", 1, b"\0\0\0\1\0\2\xc3\x28", "topics.name"),
        ("MetadataRequest", 1, b"\0\0\0\1\xff\xff", "topics.name"),
        ("MetadataRequest", 12, b"\1\0\0\5", "tags"),
        ("MetadataRequest", 12, b"\1\0\0\1\x05\x7f", "tags"),
        ("HeartbeatRequest", 0, b"\0\1g\0", "generation_id to member_id"),
        ("ProduceRequest", 3, b"\xff\xff\0\1\0\0\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\x64abc", "records"),
        ("FetchRequest", 12, b"\0" * 25 + b"\1\1\1\1\0\3\2x\0", "cluster_id"),
    ],
)
def test_the_field_is_named(name: str, version: int, data: bytes, field: str) -> None:
    with pytest.raises(MalformedMessage, match=rf"{name} v{version} .*{field}:"):
        getattr(messages, name).decode(data, version)
