"""The subject of a certificate as RFC 2253 writes it, and as Java and so Kafka's ACLs do: `CN=alice,OU=a\\, b,C=DE`.

Reads as much of DER as leads to the subject. The certificate has been read and found good before, by OpenSSL.
"""

from __future__ import annotations

from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""What has a name of its own; all else is written with its number."""

_ENCODINGS: Final = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
_ESCAPED: Final = frozenset(',+"\\<>;')
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0


def subject_of(certificate: bytes) -> str:
    """From the whole certificate as DER. ValueError where that is none."""
    try:
        fields = _children(_first(_first(memoryview(certificate))))
        # Behind the version, which old ones lack: serial number, signature, issuer, validity, subject.
        subject = fields[(fields[0][0] == _VERSION) + 4][1]
        return ",".join("+".join(map(_attribute, _children(name))) for _, name in reversed(_children(subject)))
    except IndexError as fault:
        raise ValueError(f"the certificate's subject cannot be read: {fault}") from None


def _attribute(field: tuple[int, memoryview]) -> str:
    (_, number), (tag, value) = _children(field[1])[:2]
    name = _object_id(number)
    keyword = _KEYWORDS.get(name)
    text = _text(tag, value)
    if keyword is None or text is None:
        # Java writes what it has no name for with its bytes, tag and length among them.
        return f"{keyword or name}=#{_encoded(tag, value).hex()}"
    return f"{keyword}={_escaped(text)}"


def _text(tag: int, value: memoryview) -> str | None:
    """None where it is none: two that differ must never be written alike."""
    try:
        return bytes(value).decode(_ENCODINGS[tag])
    except (KeyError, UnicodeDecodeError):
        return None


def _escaped(text: str) -> str:
    chars = [f"\\{char}" if char in _ESCAPED else char for char in text]
    if text.startswith(("#", " ")):
        chars[0] = f"\\{chars[0]}"
    if len(text) > 1 and text.endswith(" "):
        chars[-1] = "\\ "
    return "".join(chars)


# DER: a tag, a length, and the bytes.


def _first(data: memoryview) -> memoryview:
    """What is in the sequence that stands first."""
    tag, value, _ = _read(data)
    if tag != _SEQUENCE:
        raise ValueError("the certificate is not one of X.509")
    return value


def _children(data: memoryview) -> list[tuple[int, memoryview]]:
    found = []
    while data:
        tag, value, data = _read(data)
        found.append((tag, value))
    return found


def _read(data: memoryview) -> tuple[int, memoryview, memoryview]:
    """Tag and value of what stands first, and the rest."""
    tag, length, position = data[0], data[1], 2
    if length & 0x80:
        position += length & 0x7F
        length = int.from_bytes(data[2:position], "big")
    if position + length > len(data):
        raise ValueError("the certificate ends too soon")
    return tag, data[position : position + length], data[position + length :]


def _encoded(tag: int, value: memoryview) -> bytes:
    length = len(value)
    if length < 0x80:
        return bytes((tag, length)) + value
    size = (length.bit_length() + 7) // 8
    return bytes((tag, 0x80 | size)) + length.to_bytes(size, "big") + value


def _object_id(data: memoryview) -> str:
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
