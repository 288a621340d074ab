"""The panel: a box where it fits, plain lines where it does not."""

from __future__ import annotations

import io

import pytest

from millpond.cli.terminal import panel

ROWS = [("listens on", "127.0.0.1:9092"), ("", ""), ("stop", "Ctrl-C")]


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_in_a_pipe_it_is_plain_lines_without_gaps() -> None:
    assert panel("Millpond", ROWS, io.StringIO()) == "Millpond\nlistens on  127.0.0.1:9092\nstop        Ctrl-C"


def test_on_a_terminal_every_line_of_the_box_is_as_wide_as_the_others() -> None:
    text = panel("Millpond", ROWS, Screen()).replace("\x1b[1m", "").replace("\x1b[0m", "")
    lines = text.splitlines()
    assert len(lines) == 5
    assert {len(line) for line in lines} == {30}
    assert lines[0].startswith("╭─ Millpond ─")


def test_what_does_not_fit_gets_no_broken_box() -> None:
    text = panel("Millpond", [*ROWS, ("data", "/" * 100)], Screen())
    assert "╭" not in text
    assert "data        " + "/" * 100 in text


def test_a_terminal_without_the_signs_gets_plain_lines() -> None:
    screen = Screen()
    screen.encoding = "ascii"  # type: ignore[misc]
    assert "╭" not in panel("Millpond", ROWS, screen)
