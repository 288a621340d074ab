"""Generated sections of pages, between two markers."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, begin: str, end: str, text: str) -> int:
    """Write the section, or with `--check` compare it. The exit code is 1 if it is out of date."""
    old = page.read_text()
    head, _, rest = old.partition(begin)
    _, _, tail = rest.partition(end)
    new = f"{head}{begin}\n{text}{end}{tail}"
    if "--check" not in sys.argv:
        page.write_text(new)
    elif new != old:
        print(f"docs/{page.name} is out of date")
        return 1
    return 0
