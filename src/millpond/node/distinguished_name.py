r"""The subject of a certificate in RFC 2253 form, as Java and so Kafka's ACLs write it: `CN=alice,OU=a\, b,C=DE`.

Parses only the DER that leads to the subject. OpenSSL has verified the certificate before.
"""

from __future__ import annotations

from typing import Final

from millpond.node.der import children, encoded, fields_of

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
"""Attributes with a short name; all others are written as OIDs."""

_ENCODINGS: Final = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
_ESCAPED: Final = frozenset(',+"\\<>;')


def subject_of(certificate: bytes) -> str:
    """The subject of a DER certificate. ValueError if it is not one."""
    try:
        _, subject = fields_of(certificate)[4]
        return ",".join("+".join(map(_attribute, children(name))) for _, name in reversed(children(subject)))
    except IndexError as fault:
        raise ValueError(f"the certificate's subject cannot be read: {fault}") from None


def _attribute(field: tuple[int, memoryview]) -> str:
    (_, number), (tag, value) = children(field[1])[:2]
    name = _object_id(number)
    keyword = _KEYWORDS.get(name)
    text = _text(tag, value)
    if keyword is None or text is None:
        # Java writes attributes without a short name as the DER bytes, including tag and length.
        return f"{keyword or name}=#{encoded(tag, value).hex()}"
    return f"{keyword}={_escaped(text)}"


def _text(tag: int, value: memoryview) -> str | None:
    """None if it is not text: two different values must never be written alike."""
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
