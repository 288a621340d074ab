"""The pages of `millpond help`: those of docs/, which a wheel includes, and named sections of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import millpond

SECTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "profiles": ("cli", "Profiles", "Names for clusters, and which cluster a command means"),
    "completion": ("cli", "Completion", "Shell completion of commands and names"),
    "records": ("cli", "Records as lines", "Records as lines of text and JSON"),
    "json": ("cli", "JSON", "What --json prints"),
    "times": ("cli", "Times, spans and sizes", "How times, spans and sizes are written"),
    "exit-codes": ("cli", "Exit codes", "What the exit code of a command means"),
}
"""Sections of pages with a name: the page, the heading, and a summary."""

_COMMENT: Final = re.compile(r"^<!--.*?-->\n?", re.DOTALL | re.MULTILINE)

OTHER_NAMES: Final[Mapping[str, str]] = {
    "dlq": "dead-letters",
    "queue": "queues",
    "settings": "config",
    "worker": "client",
}


@dataclass(frozen=True, slots=True)
class Page:
    """One topic of the help. Its text is Markdown."""

    name: str
    title: str
    text: str


def docs_folder() -> Path | None:
    """Beside the code in a wheel, otherwise in the repository; None if missing."""
    package = Path(millpond.__file__).parent
    folders = (package / "docs", package.parent.parent / "docs")
    return next((each for each in folders if (each / "cli.md").is_file()), None)


def read_pages() -> dict[str, Page]:
    """All topics by name, in the order in which they are listed."""
    folder = docs_folder()
    files = sorted(folder.glob("*.md"), key=lambda each: each.stem.lower()) if folder is not None else []
    pages = {}
    for each in files:
        text = without_comments(each.read_text(encoding="utf-8"))
        name = each.stem.lower().replace("_", "-")
        pages[name] = Page(name, text.partition("\n")[0].lstrip("# "), text)
    for name, (whole, heading, title) in SECTIONS.items():
        if whole in pages:
            pages[name] = Page(name, title, section(pages[whole].text, heading))
    return dict(sorted(pages.items()))


def without_comments(text: str) -> str:
    """Comments are for tools that check the docs."""
    return _COMMENT.sub("", text)


def section(text: str, heading: str) -> str:
    """A section with its second-level heading; empty if there is no such heading."""
    lines = text.splitlines()
    try:
        first = lines.index(f"## {heading}")
    except ValueError:
        return ""
    after = (at for at in range(first + 1, len(lines)) if lines[at].startswith("## "))
    return "\n".join(lines[first : next(after, len(lines))]).rstrip() + "\n"
