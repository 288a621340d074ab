"""What an option of the Spark source and sink is: a name, a default, a meaning, how its text is read, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from millpond.client.errors import ConfigError

T = TypeVar("T")

Where: TypeAlias = Literal["read", "readStream", "write", "writeStream"]
READS: Final[frozenset[Where]] = frozenset({"read", "readStream"})
BATCH: Final[frozenset[Where]] = frozenset({"read"})
STREAM: Final[frozenset[Where]] = frozenset({"readStream"})
WRITE: Final[frozenset[Where]] = frozenset({"write"})
WRITES: Final[frozenset[Where]] = frozenset({"write", "writeStream"})


class OptionError(ConfigError):
    """An option that cannot be; the text says what to write instead."""


def text(given: str) -> str:
    if not given.strip():
        raise ValueError("it is empty")
    return given.strip()


def boolean(given: str) -> bool:
    match given.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("it is true or false")


def at_least(least: int) -> Callable[[str], int]:
    def parse(given: str) -> int:
        try:
            number = int(given.strip())
        except ValueError:
            raise ValueError("it is a whole number") from None
        if number < least:
            raise ValueError(f"it is at least {least}")
        return number

    return parse


def one_of(*words: str) -> Callable[[str], str]:
    def parse(given: str) -> str:
        word = given.strip().lower()
        if word not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return word

    return parse


_UNIT_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(given: str) -> int:
    """Spark's way to write a time: 15m, 10s, 500ms; a bare number is milliseconds."""
    match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", given.strip().lower())
    if match is None or match[2] not in _UNIT_MS:
        raise ValueError("it is a time such as 500ms, 10s, 15m or 1h")
    return int(match[1]) * _UNIT_MS[match[2]]


@dataclass(frozen=True)
class Option(Generic[T]):
    name: str
    default: T
    doc: str
    parse: Callable[[str], T]
    where: frozenset[Where]
    shown: str = ""
    """The default in words, where the value does not say it."""
    harmless: bool = False
    """Out of its place it changes nothing, so it is only warned about there."""
