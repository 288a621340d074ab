"""One line an event: the time, the event, its facts."""

from __future__ import annotations

import io
import json
import os
import re

from millpond.node.journal import LINES_AT_ONCE_MAX, WAITING_BYTES_MAX, LineJournal, as_json


def written(journal: LineJournal, out: io.StringIO) -> str:
    assert journal.flush(60)
    return out.getvalue()


def test_an_event_is_one_line_with_its_facts() -> None:
    out = io.StringIO()
    journal = LineJournal(out)
    journal("partition cannot be opened", partition="orders-0", error="disk on fire")
    line = written(journal, out)
    assert re.fullmatch(r"\d\d:\d\d:\d\d  partition cannot be opened  partition=orders-0  error=disk on fire\n", line)


def test_an_event_without_facts_has_no_trailing_space() -> None:
    out = io.StringIO()
    journal = LineJournal(out)
    journal("ready")
    assert written(journal, out).endswith("  ready\n")


def test_an_event_that_floods_is_counted_instead() -> None:
    out = io.StringIO()
    now = 100.0
    journal = LineJournal(out, lambda: now)
    for number in range(250):
        journal("connection closed", peer=number)
    journal("ready")
    assert len(written(journal, out).splitlines()) == 201
    now = 101.0
    for number in range(250, 260):
        journal("connection closed", peer=number)
    assert len(written(journal, out).splitlines()) == 202
    assert written(journal, out).endswith("connection closed  peer=250  left_out_before=50\n")


def test_a_traceback_counts_as_the_lines_that_it_has() -> None:
    out = io.StringIO()
    journal = LineJournal(out, lambda: 100.0)
    for _ in range(20):
        journal("a bug", traceback="\n" + "\n".join(f"line {number}" for number in range(49)))
    assert written(journal, out).count("\n") == LINES_AT_ONCE_MAX


def test_an_unread_pipe_costs_lines_and_no_time() -> None:
    """A node whose standard error was a full pipe once stopped answering clients."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as out:
        journal = LineJournal(out)
        # The pipe is never read, so a write to it would block forever.
        for number in range(1000):
            journal(f"event {number}", text="x" * 1000)
        assert not journal.flush(0.05)
        dropped = journal.dropped_total
        assert 0 < dropped < 1000
        # The pipe takes a little once the writer begins, so that lines may be dropped in more than one stretch.
        written = b""
        while written.count(b"text=") < 1000 - dropped:
            written += reader.read(WAITING_BYTES_MAX)
        assert journal.flush(60)
        journal("ready")
        written += reader.read(WAITING_BYTES_MAX)
        notices = re.findall(rb"\((\d+) events before this one were dropped", written)
        assert sum(map(int, notices)) == dropped


def test_a_reader_that_is_gone_is_no_fault_of_the_node() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        journal = LineJournal(out)
        journal("ready")
        journal("still here")
        assert journal.flush(60)


def test_the_traceback_of_a_bug_reaches_a_slow_reader_too() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as out:
        journal = LineJournal(out)
        for number in range(1000):
            journal(f"event {number}", text="x" * 1000)
        journal("a bug", traceback="\n" + "a frame of it\n" * 100 + "why")
        told = b""
        while not told.endswith(b"why\n") and not (told and journal.flush(0.2)):
            told += reader.read(WAITING_BYTES_MAX)
        if not told.endswith(b"why\n"):
            os.set_blocking(reader.fileno(), False)
            told += reader.read(WAITING_BYTES_MAX) or b""
        assert told.endswith(b"why\n")


def test_as_json_each_event_is_an_object_on_one_line() -> None:
    out = io.StringIO()
    journal = LineJournal(out, shape=as_json)
    journal("event loop stalled", stall_ms=812, reason=OSError("no\nroom"), traceback="a\nb")
    journal("plain")
    first, second = map(json.loads, written(journal, out).splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "event": "event loop stalled",
        "stall_ms": 812,
        "reason": "no\nroom",
        "traceback": "a\nb",
    }
    assert second["event"] == "plain"


def test_as_json_events_that_were_dropped_are_one_too() -> None:
    journal = LineJournal(io.StringIO(), shape=as_json)
    assert json.loads(journal._tell_dropped(3))["count"] == 3


def test_what_strangers_name_begins_no_line_and_speaks_to_no_terminal() -> None:
    out = io.StringIO()
    journal = LineJournal(out)
    journal("connection closed", client="a\n12:00:00  all is well  x=\x1b[2J", reason=ValueError("b\r\u202ec é"))
    line = written(journal, out)
    assert line.count("\n") == 1
    assert r"client=a\n12:00:00  all is well  x=\x1b[2J  reason=b\r\u202ec " in line
