"""Amounts in human notation: `1KiB`, `20TB`, `1GB/s`, `10Gbit/s`, `100k/s`; and back."""

from __future__ import annotations

import re
from math import floor, log10
from typing import Final

_NUMBER: Final = re.compile(r"(\d+(?:[_,]\d{3})*(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)\s*([a-zA-Z]*)")
_PREFIXES: Final = {
    "": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15,
    "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50,
}  # fmt: skip
_BYTES: Final = ("bytes", "byte", "b")
_BITS: Final = ("bits", "bit")
_COUNTS: Final = ("messages", "message", "msgs", "msg", "records", "record")
_PER_SECOND: Final = re.compile(r"\s*(?:/\s*s(?:ec(?:ond)?)?|ps)$")


def read_bytes(text: str) -> float:
    """A number of bytes; bytes are the default unit. ValueError if it is not one."""
    amount = _read(text, _BYTES, allow_bare=True)
    if amount is None:
        raise ValueError(f"{text!r} is not a size; write it like 1KB, 1KiB or 20TB")
    return amount


def read_byte_rate(text: str) -> float:
    """Bytes per second, from `10MB/s` or `10Gbit/s`."""
    bare = _PER_SECOND.sub("", text.strip())
    amount = _read(bare, _BYTES, allow_bare=False)
    if amount is None:
        bits = _read(bare, _BITS, allow_bare=False)
        amount = None if bits is None else bits / 8
    if amount is None:
        raise ValueError(f"{text!r} is not a data rate; write it like 10MB/s or 10Gbit/s")
    return amount


def read_rate(text: str) -> tuple[float, bool]:
    """A rate, and whether it counts bytes (`1GB/s`) rather than messages (`100k/s`)."""
    bare = _PER_SECOND.sub("", text.strip())
    count = _read(bare, _COUNTS, allow_bare=True)
    if count is not None:
        return count, False
    try:
        return read_byte_rate(text), True
    except ValueError:
        raise ValueError(f"{text!r} is not a rate; write it like 100k/s (messages) or 1GB/s (data)") from None


def _read(text: str, words: tuple[str, ...], *, allow_bare: bool) -> float | None:
    """The number, if its unit is one of `words` with or without a prefix; or, with `allow_bare`, a prefix alone."""
    parts = _NUMBER.fullmatch(text.strip())
    if parts is None:
        return None
    unit = (parts[2] + parts[3]).lower()
    for word in (*words, "") if allow_bare else words:
        prefix = unit.removesuffix(word)
        if unit.endswith(word) and prefix in _PREFIXES:
            return float(parts[1].replace(",", "").replace("_", "")) * _PREFIXES[prefix]
    return None


def show_bytes(count: float) -> str:
    """With three significant digits: 86.4 TB, 605 TB, 1.81 PB."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{show_number(count)} {unit}"
        count /= 1000
    return f"{show_number(count)} PB"


def show_byte_rate(per_second: float) -> str:
    return f"{show_bytes(per_second)}/s"


def show_number(number: float) -> str:
    """Three significant digits without trailing zeros; whole numbers stay whole."""
    if number == round(number):
        return f"{number:,.0f}"
    digits = max(0, 2 - floor(log10(abs(number))))
    text = f"{number:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
