"""Gather the pages of the site: README as its first page, docs, decisions, the examples' READMEs and the changes.

In the repository links go from file to file. Here they go from page to page; what is no page (a folder of source, a
program) is named and not linked.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
IMAGES = "images"
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def pages(root: Path) -> dict[Path, str]:
    """Each file that is a page, and its place in the site."""
    found = {root / "README.md": "index.md", root / "CHANGELOG.md": "CHANGELOG.md"}
    for page in sorted((root / "docs").rglob("*.md")):
        found[page] = str(page.relative_to(root / "docs"))
    for page in sorted((root / "examples").rglob("*.md")):
        found[page] = str(page.relative_to(root))
    return found


def gather(root: Path, out: Path) -> None:
    if out.exists():
        shutil.rmtree(out)
    known = pages(root)
    for page, place in known.items():
        target = out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_relinked(page, known), encoding="utf-8")
    if (root / "docs" / IMAGES).is_dir():
        shutil.copytree(root / "docs" / IMAGES, out / IMAGES)


def _relinked(page: Path, known: dict[Path, str]) -> str:
    text = page.read_text(encoding="utf-8")
    parts: list[str] = []
    at = 0
    for start, end in [*_fences(text), (len(text), len(text))]:
        linked = LINK.sub(lambda match: _link(match, page, known), text[at:start])
        parts.append(IMAGE.sub(lambda match: _image(match, known[page]), linked))
        parts.append(text[start:end])
        at = end
    return "".join(parts)


def _fences(text: str) -> Iterator[tuple[int, int]]:
    for match in FENCE.finditer(text):
        yield match.span()


def _link(match: re.Match[str], page: Path, known: dict[Path, str]) -> str:
    target, hash_sign, anchor = match["target"].partition("#")
    if re.match(r"[a-z]+:", match["target"]) or not target:
        return match[0]
    wanted = (page.parent / target).resolve()
    wanted = wanted / "README.md" if wanted.is_dir() else wanted
    if wanted not in known:
        return match["text"]
    here = Path(known[page]).parent
    way = Path(*[".."] * len(here.parts), known[wanted])
    return f"[{match['text']}]({way}{hash_sign}{anchor})"


def _image(match: re.Match[str], place: str) -> str:
    """Pictures are in one folder, below which no other is."""
    if re.match(r"[a-z]+:", match["target"]):
        return match[0]
    up = [".."] * (len(Path(place).parts) - 1)
    return f"![{match['text']}]({Path(*up, IMAGES, Path(match['target']).name)})"


if __name__ == "__main__":
    gather(ROOT, ROOT / sys.argv[1])
