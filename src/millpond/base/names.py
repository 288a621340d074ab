"""Topic and header names with a meaning, and suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DEAD_LETTERS_ENDING: Final = ".dlq"
"""The suffix of dead-letter topics. A topic with this suffix is assumed to hold dead letters."""

DELIVER_AT_HEADER: Final = "queue.deliver-at"
"""The time before which no member of a share group receives the record: decimal milliseconds since 1970."""
PRIORITY_HEADER: Final = "queue.priority"
"""One digit, 0 to 9: groups with `share.priority.enable` receive higher ones first."""
PRIORITY_MAX: Final = 9


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: a suggestion, if a known name is similar."""
    import difflib

    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else "."
