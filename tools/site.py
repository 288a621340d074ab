"""Collect the pages of the site: README, docs, decisions, READMEs of the examples and the changelog.

Links between files become links between pages; a link to anything else (source code) becomes plain text.
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
    """Each page's file, with its path in the site."""
    site_paths = {root / "README.md": "index.md", root / "CHANGELOG.md": "CHANGELOG.md"}
    for page in sorted((root / "docs").rglob("*.md")):
        site_paths[page] = str(page.relative_to(root / "docs"))
    for page in sorted((root / "examples").rglob("*.md")):
        site_paths[page] = str(page.relative_to(root))
    return site_paths


def gather(root: Path, out: Path) -> None:
    if out.exists():
        shutil.rmtree(out)
    site_paths = pages(root)
    for page, site_path in site_paths.items():
        target = out / site_path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_relinked(page, site_paths), encoding="utf-8")
    if (root / "docs" / IMAGES).is_dir():
        shutil.copytree(root / "docs" / IMAGES, out / IMAGES)


def _relinked(page: Path, site_paths: dict[Path, str]) -> str:
    text = page.read_text(encoding="utf-8")
    parts: list[str] = []
    at = 0
    for start, end in [*_fences(text), (len(text), len(text))]:
        linked = LINK.sub(lambda match: _link(match, page, site_paths), text[at:start])
        parts.append(IMAGE.sub(lambda match: _image(match, site_paths[page]), linked))
        parts.append(text[start:end])
        at = end
    return "".join(parts)


def _fences(text: str) -> Iterator[tuple[int, int]]:
    for match in FENCE.finditer(text):
        yield match.span()


def _link(match: re.Match[str], page: Path, site_paths: dict[Path, str]) -> str:
    target, hash_sign, anchor = match["target"].partition("#")
    if re.match(r"[a-z]+:", match["target"]) or not target:
        return match[0]
    linked = (page.parent / target).resolve()
    linked = linked / "README.md" if linked.is_dir() else linked
    if linked not in site_paths:
        return match["text"]
    here = Path(site_paths[page]).parent
    relative = Path(*[".."] * len(here.parts), site_paths[linked])
    return f"[{match['text']}]({relative}{hash_sign}{anchor})"


def _image(match: re.Match[str], site_path: str) -> str:
    """All pictures are in one flat folder."""
    if re.match(r"[a-z]+:", match["target"]):
        return match[0]
    up = [".."] * (len(Path(site_path).parts) - 1)
    return f"![{match['text']}]({Path(*up, IMAGES, Path(match['target']).name)})"


if __name__ == "__main__":
    gather(ROOT, ROOT / sys.argv[1])
