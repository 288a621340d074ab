"""A part of a page that a program writes, between two marks; `--check` says when it is out of date."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, begin: str, end: str, text: str) -> int:
    """The exit code: 1 if it was only to be checked, and is not what it should be."""
    before = page.read_text()
    head, _, rest = before.partition(begin)
    _, _, tail = rest.partition(end)
    fresh = f"{head}{begin}\n{text}{end}{tail}"
    if "--check" not in sys.argv:
        page.write_text(fresh)
    elif fresh != before:
        print(f"docs/{page.name} is out of date")
        return 1
    return 0
