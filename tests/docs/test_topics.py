"""A reader can follow several pages on one node: their topics do not collide."""

from __future__ import annotations

import re

from support.pages import ROOT, blocks

CREATED_TOPIC = re.compile(r"millpond topic create ([\w.-]+)|millpond produce ([\w.-]+) .*--create")
HANDS_ON_PAGES = {"README.md", "docs/tutorial.md"}


def test_hands_on_pages_share_no_topics() -> None:
    pages: dict[str, set[str]] = {}
    for block in blocks():
        if block.page in HANDS_ON_PAGES or block.page.startswith("examples/"):
            for names in CREATED_TOPIC.findall(block.text):
                pages.setdefault("".join(names), set()).add(block.page)
    assert {page for each in pages.values() for page in each} >= HANDS_ON_PAGES
    assert {topic: each for topic, each in pages.items() if len(each) > 1} == {}


def test_pipelines_of_different_examples_read_different_topics() -> None:
    readers: dict[str, set[str]] = {}
    for path in (ROOT / "examples").rglob("*.toml"):
        for topic in re.findall(r'(?m)^topic = "([^"]+)"', path.read_text()):
            readers.setdefault(topic, set()).add(path.parent.name)
    # The demo starts its own node.
    shared = {topic: folders - {"demo"} for topic, folders in readers.items() if len(folders - {"demo"}) > 1}
    assert readers
    assert shared == {}
