"""An option of the Spark source and sink: a setting, and where it applies."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from millpond.base.settings import Setting, SettingError, V
from millpond.base.values import dataclass
from millpond.client.errors import ConfigError

Where: TypeAlias = Literal["read", "readStream", "write", "writeStream"]
READS: Final[frozenset[Where]] = frozenset({"read", "readStream"})
BATCH: Final[frozenset[Where]] = frozenset({"read"})
STREAM: Final[frozenset[Where]] = frozenset({"readStream"})
WRITE: Final[frozenset[Where]] = frozenset({"write"})
WRITES: Final[frozenset[Where]] = frozenset({"write", "writeStream"})


class OptionError(ConfigError):
    """An invalid option; the message says what to write instead."""


_UNIT_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d{1,15})\s*([a-z]*)")


@dataclass(frozen=True, eq=False)
class Option(Setting[V]):
    """An option without a default has its type's zero; `Options.get` shows whether it was given."""

    where: frozenset[Where] = frozenset()
    shown: str = ""
    """The default in words, if the value does not explain itself."""
    harmless: bool = False
    """Where it has no effect, it only causes a warning."""
    any_case: bool = False
    """Whether the value is case-insensitive."""
    is_duration: bool = False
    """A time as Spark writes it: 15m, 10s, 500ms; a bare number is milliseconds."""

    def _read(self, text: str) -> V:
        if self.is_duration:
            time = _DURATION.fullmatch(text.lower())
            if time is None or time[2] not in _UNIT_MS:
                raise SettingError(f"{self.name}={text}: must be a time such as 500ms, 10s, 15m or 1h")
            text = str(int(time[1]) * _UNIT_MS[time[2]])
        if not text:
            raise SettingError(f"{self.name} is empty")
        return Setting._read(self, text.lower() if self.any_case else text)
