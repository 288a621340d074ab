"""The pages of the documentation and their code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^```(?P<kind>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    """The language after the fence; empty for shell commands and output."""
    title: str | None
    text: str

    @property
    def first(self) -> str:
        return self.text.strip().splitlines()[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    paths = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("**/README.md")]
    return sorted(each for each in paths if ".venv" not in each.parts)


def blocks() -> Iterator[Block]:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(str(page.relative_to(ROOT)), line, match["kind"], match["title"], match["text"])
