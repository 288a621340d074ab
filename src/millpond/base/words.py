"""Words for people that go by number or by sound: `1 record`, `2 records`, `a dict`, `an int`."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 record`, `1,200 records`, `2 tries`."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing[:-1]}ies" if thing.endswith("try") else f"{number:,} {thing}s"


def with_article(name: str) -> str:
    """`a dict`, `an Order`."""
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
