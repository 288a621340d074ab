"""Links of README, docs and examples lead to existing files and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import FENCE, ROOT, pages

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
ALL = [*pages(), *sorted((ROOT / "docs" / "decisions").glob("*.md")), ROOT / "CHANGELOG.md"]


def anchors_of(page: Path) -> set[str]:
    """Anchors as GitHub and mkdocs derive them from headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).lower()) for each in headings)
    return {each.strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists():
            broken.append(f"{target}: no such file")
        elif anchor and linked.suffix == ".md" and anchor not in anchors_of(linked):
            broken.append(f"{target}: no such heading")
    assert broken == []


def test_every_picture_exists_and_is_used() -> None:
    used = {
        (page.parent / each).resolve() for page in ALL for each in PICTURE.findall(page.read_text(encoding="utf-8"))
    }
    assert used == set((ROOT / "docs" / "images").iterdir())


def test_every_page_is_reachable_from_the_readme() -> None:
    visited, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in visited or page.suffix != ".md" or not page.exists():
            continue
        visited.add(page)
        targets = [each for each in LINK.findall(page.read_text(encoding="utf-8")) if not re.match(r"[a-z]+:", each)]
        queue += [(page.parent / each.partition("#")[0]).resolve() for each in targets]
    assert [str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md") if page not in visited] == []
