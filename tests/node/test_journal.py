"""One line an event: the time, the event, its facts."""

from __future__ import annotations

import io
import re

from millpond.node.journal import LineJournal


def test_an_event_is_one_line_with_its_facts() -> None:
    out = io.StringIO()
    LineJournal(out)("partition cannot be opened", partition="orders-0", error="disk on fire")
    line = out.getvalue()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  partition cannot be opened  partition=orders-0  error=disk on fire\n", line)


def test_an_event_without_facts_has_no_trailing_space() -> None:
    out = io.StringIO()
    LineJournal(out)("ready")
    assert out.getvalue().endswith("  ready\n")


def test_an_event_that_floods_is_counted_instead() -> None:
    out = io.StringIO()
    now = 100.0
    journal = LineJournal(out, lambda: now)
    for number in range(250):
        journal("connection closed", peer=number)
    journal("ready")
    assert len(out.getvalue().splitlines()) == 201
    now = 101.0
    for number in range(250, 260):
        journal("connection closed", peer=number)
    assert len(out.getvalue().splitlines()) == 202
    assert out.getvalue().endswith("connection closed  peer=250  left_out_before=50\n")
