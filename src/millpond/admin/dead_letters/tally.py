"""Count names found in letter headers, which can hold any text and be different in every letter."""

from __future__ import annotations

from collections import Counter
from typing import Final

from millpond.admin.excerpts import cut_text

NAME_SIGNS_MAX: Final = 200
NAMES_MAX: Final = 1_000
"""Limit on distinct names; further ones are counted as others."""
OTHERS: Final = "(others)"
UNKNOWN: Final = "(no headers)"
"""Counted for letters without the header."""


def short_name(text: str) -> str:
    """A name shortened for counting and display."""
    return cut_text(text, NAME_SIGNS_MAX)


class Tally(Counter[str]):
    def note(self, name: str) -> str:
        """Count the name; returns the name it was counted under."""
        short = short_name(name)
        if short not in self and len(self) >= NAMES_MAX:
            short = OTHERS
        self[short] += 1
        return short
