"""Wording helpers: plurals (`1 record`, `2 records`), articles (`a dict`, `an int`), and quoted names."""

from __future__ import annotations

from typing import Final

NAME_SHOWN_MAX: Final = 250
"""No useful name is longer; formatting one of 32 KiB would take a millisecond each time."""


def quoted(name: str) -> str:
    """A name chosen by somebody else, for a message: shortened, and without line breaks."""
    return repr(name) if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]!r}…"


def counted(number: int, thing: str) -> str:
    """`1 record`, `1,200 records`, `2 tries`."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing[:-1]}ies" if thing.endswith("try") else f"{number:,} {thing}s"


def with_article(name: str) -> str:
    """`a dict`, `an Order`."""
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
