"""What a node says when it is ready: a box on a terminal, plain lines elsewhere. Drawn by hand to stay small."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from millpond.cli.text import can_show

Row = tuple[str, str]
"""A name and what it is; a row without a name is a gap or a line of its own."""


def panel(title: str, rows: Sequence[Row], out: TextIO | None = None) -> str:
    """The rows under a title, as `out` can show them."""
    out = out or sys.stdout
    name_width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{name:<{name_width}}  {text}".rstrip() for name, text in rows]
    if not out.isatty() or not can_show("╭─│╰", out):
        return "\n".join([title, *filter(None, lines)])
    return _boxed(title, lines)


def _boxed(title: str, lines: Sequence[str]) -> str:
    width = max(len(title) + 2, *(len(line) for line in lines))
    if width + 4 > shutil.get_terminal_size().columns:
        # A line that the terminal breaks would break the box too.
        return "\n".join([title, *lines])
    top = f"╭─ \x1b[1m{title}\x1b[0m " + "─" * (width - len(title) - 1) + "╮"
    body = [f"│ {line}{' ' * (width - len(line))} │" for line in lines]
    return "\n".join([top, *body, "╰" + "─" * (width + 2) + "╯"])
