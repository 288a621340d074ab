"""Every link of README, docs and examples leads to a file, and to a heading that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import FENCE, ROOT, pages

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
ALL = [*pages(), *sorted((ROOT / "docs" / "decisions").glob("*.md")), ROOT / "CHANGELOG.md"]


def anchors_of(page: Path) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).lower()) for each in headings)
    return {each.strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        where = (page.parent / name).resolve() if name else page
        if not where.exists():
            broken.append(f"{target}: there is no such file")
        elif anchor and where.suffix == ".md" and anchor not in anchors_of(where):
            broken.append(f"{target}: there is no such heading")
    assert broken == []


def test_every_picture_is_there_and_shown_somewhere() -> None:
    shown = {
        (page.parent / each).resolve() for page in ALL for each in PICTURE.findall(page.read_text(encoding="utf-8"))
    }
    assert shown == set((ROOT / "docs" / "images").iterdir())


def test_every_page_can_be_found_from_the_readme() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        targets = [each for each in LINK.findall(page.read_text(encoding="utf-8")) if not re.match(r"[a-z]+:", each)]
        ahead += [(page.parent / each.partition("#")[0]).resolve() for each in targets]
    assert [str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md") if page not in seen] == []
