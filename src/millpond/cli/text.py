"""Words for people: counts, signs that a terminal can show, and none that it would obey."""

from __future__ import annotations

import re
import sys
from typing import Final, TextIO

from millpond.base.words import counted as counted

NOTHING: Final = "–"
"""What is not known, or does not apply."""

_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNSAFE_IN_LINE: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def safe(text: str, *, in_line: bool = False) -> str:
    """Whoever wrote a record, or named a client, chose these words: a terminal must not obey them.

    `in_line`: they must not begin a line of their own either.
    """
    return (_UNSAFE_IN_LINE if in_line else _UNSAFE).sub(lambda sign: f"\\x{ord(sign[0]):02x}", text)


def can_show(signs: str, out: TextIO | None = None) -> bool:
    """Whether the output's encoding has these signs."""
    try:
        signs.encode((out or sys.stdout).encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
