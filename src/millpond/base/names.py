"""A name that nobody knows: the known one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that was probably meant, if there is one."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else "."
