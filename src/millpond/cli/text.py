"""Text for people: counts, and characters that are safe on a terminal."""

from __future__ import annotations

import re
import sys
from typing import Final, TextIO

from millpond.base.words import counted as counted

NOTHING: Final = "–"
"""Unknown, or not applicable."""

_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNSAFE_IN_LINE: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def safe(text: str, *, in_line: bool = False) -> str:
    """Escapes control characters in text from outside, which a terminal would obey.

    `in_line` escapes line breaks, too.
    """
    return (_UNSAFE_IN_LINE if in_line else _UNSAFE).sub(lambda sign: f"\\x{ord(sign[0]):02x}", text)


def can_show(signs: str, out: TextIO | None = None) -> bool:
    """Whether the output's encoding has these characters."""
    try:
        signs.encode((out or sys.stdout).encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
