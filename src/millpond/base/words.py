"""Words for people that go by number or by sound: `1 record`, `2 records`, `a dict`, `an int`; names of others."""

from __future__ import annotations

from typing import Final

NAME_SHOWN_MAX: Final = 250
"""No name that is of use to anybody is longer; one of 32 KiB would take a millisecond each time it is told."""


def quoted(name: str) -> str:
    """A name that somebody else chose, for a message: a long one is cut, and nothing in it begins a line."""
    return repr(name) if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]!r}…"


def counted(number: int, thing: str) -> str:
    """`1 record`, `1,200 records`, `2 tries`."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing[:-1]}ies" if thing.endswith("try") else f"{number:,} {thing}s"


def with_article(name: str) -> str:
    """`a dict`, `an Order`."""
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
