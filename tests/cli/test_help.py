"""Pages of the docs in the terminal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from millpond.cli.help.pages import OTHER_NAMES, SECTIONS, read_pages, section


def test_every_page_has_a_title_and_a_text() -> None:
    pages = read_pages()
    assert {"cli", "config", "cluster", "dead-letters", "operations", *SECTIONS} <= pages.keys()
    assert set(OTHER_NAMES.values()) <= pages.keys()
    for page in pages.values():
        assert page.title, page.name
        assert len(page.text.splitlines()) > 3, page.name


def test_a_section_ends_where_the_next_begins() -> None:
    text = "# A\n## One\na\n### Deeper\nb\n\n## Two\nc\n"
    assert section(text, "One") == "## One\na\n### Deeper\nb\n"
    assert section(text, "Two") == "## Two\nc\n"
    assert section(text, "Three") == ""


def test_pages_and_commands_are_found_by_name(lonely: Any) -> None:
    assert "Exit codes" in lonely("help", "exit", "codes").out.split("\n\n")[0]
    assert "Dead letters" in lonely("help", "dlq").out.split("\n\n")[0]
    assert lonely("help", "topic", "alter").out == lonely("topic", "alter", "--help").out
    assert {"topic": "profiles", "title": SECTIONS["profiles"][2]} in json.loads(lonely("help", "--json").out)
    assert "profiles " in lonely("help").out
    wrong = lonely("help", "profils")
    assert wrong.code == 1
    assert wrong.err.startswith("millpond: There is no topic or command 'profils'; did you mean profiles?")


def test_in_a_pipe_a_page_is_plain_text(lonely: Any) -> None:
    for name in ("operations", "tutorial"):
        result = lonely("help", name).out
        assert "<!--" not in result
        assert "\x1b" not in result
        assert "|---" not in result


def test_less_shows_colours_and_not_their_codes(in_terminal: Callable[..., Any], monkeypatch: Any) -> None:
    if shutil.which("less") is None:
        pytest.skip("there is no less here")
    monkeypatch.delenv("LESS", raising=False)
    shown = in_terminal("help", "exit-codes", pager="less")
    shown.read_until("interrupted")
    assert "ESC[" not in shown.text


def test_on_a_terminal_a_page_is_set(in_terminal: Callable[..., Any]) -> None:
    shown = in_terminal("help", "exit-codes")
    shown.read_until("interrupted")
    assert "|---" not in shown.text
