"""The part of DER that certificates need: a tag, a length, and the bytes."""

from __future__ import annotations

from typing import Final

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0


def fields_of(certificate: bytes) -> list[tuple[int, memoryview]]:
    """Serial number, signature, issuer, validity, subject and more; without the version, which is optional.

    ValueError or IndexError if this is not a certificate.
    """
    fields = children(_first(_first(memoryview(certificate))))
    return fields[fields[0][0] == _VERSION :]


def children(data: memoryview) -> list[tuple[int, memoryview]]:
    """Tag and value of consecutive elements."""
    found = []
    while data:
        tag, value, data = _read(data)
        found.append((tag, value))
    return found


def encoded(tag: int, value: memoryview) -> bytes:
    length = len(value)
    if length < 0x80:
        return bytes((tag, length)) + value
    size = (length.bit_length() + 7) // 8
    return bytes((tag, 0x80 | size)) + length.to_bytes(size, "big") + value


def _first(data: memoryview) -> memoryview:
    """The content of the sequence at the start."""
    tag, value, _ = _read(data)
    if tag != _SEQUENCE:
        raise ValueError("not an X.509 certificate")
    return value


def _read(data: memoryview) -> tuple[int, memoryview, memoryview]:
    """Tag and value of the first element, and the rest."""
    tag, length, position = data[0], data[1], 2
    if length & 0x80:
        position += length & 0x7F
        length = int.from_bytes(data[2:position], "big")
    if position + length > len(data):
        raise ValueError("the certificate is truncated")
    return tag, data[position : position + length], data[position + length :]
