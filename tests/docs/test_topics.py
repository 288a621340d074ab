"""Whoever tries one page after another on one node meets no records of a page before."""

from __future__ import annotations

import re

from support.pages import ROOT, blocks

MADE = re.compile(r"millpond topic create ([\w.-]+)|millpond produce ([\w.-]+) .*--create")
TRIED = {"README.md", "docs/tutorial.md"}


def test_pages_to_be_tried_share_no_topic() -> None:
    pages: dict[str, set[str]] = {}
    for block in blocks():
        if block.page in TRIED or block.page.startswith("examples/"):
            for names in MADE.findall(block.text):
                pages.setdefault("".join(names), set()).add(block.page)
    assert {page for each in pages.values() for page in each} >= TRIED
    assert {topic: each for topic, each in pages.items() if len(each) > 1} == {}


def test_pipelines_of_the_examples_read_topics_of_their_own() -> None:
    readers: dict[str, set[str]] = {}
    for path in (ROOT / "examples").rglob("*.toml"):
        for topic in re.findall(r'(?m)^topic = "([^"]+)"', path.read_text()):
            readers.setdefault(topic, set()).add(path.parent.name)
    # The demo has a node of its own.
    shared = {topic: folders - {"demo"} for topic, folders in readers.items() if len(folders - {"demo"}) > 1}
    assert readers
    assert shared == {}
