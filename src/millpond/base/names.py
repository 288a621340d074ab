"""Names of topics that mean something; and, of a name that nobody knows, the known one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DEAD_LETTERS_ENDING: Final = ".dlq"
"""Behind a topic's name: where its dead letters go. Whoever names a topic so says that it holds such."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that was probably meant, if there is one."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else "."
