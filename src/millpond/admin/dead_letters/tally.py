"""How often each name came, as letters give them: anything may stand in a header, and in each another thing."""

from __future__ import annotations

from collections import Counter
from typing import Final

from millpond.admin.excerpts import cut_text

NAME_SIGNS_MAX: Final = 200
NAMES_MAX: Final = 1_000
"""So many are told apart; whatever comes then is one of the others."""
OTHERS: Final = "(others)"
UNKNOWN: Final = "(no headers)"
"""Of letters that do not say."""


def short_name(text: str) -> str:
    """The name of an error, a topic or a group, as it is counted and shown."""
    return cut_text(text, NAME_SIGNS_MAX)


class Tally(Counter[str]):
    def note(self, name: str) -> str:
        """One more of it; the name under which it was counted."""
        short = short_name(name)
        if short not in self and len(self) >= NAMES_MAX:
            short = OTHERS
        self[short] += 1
        return short
