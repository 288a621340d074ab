"""What an operator should know, one line an event on standard error: the time, the event, its facts.

For people that is text; for machines, on request, each line is an object of JSON with `time`, `event` and the facts.

An event that comes again and again (a client that speaks another protocol knocks many times a second) is told in full
for a while, and then once a second with the number of those left out. A thread of its own writes: a standard error
that nobody reads, or that is gone, costs lines, which are counted, and never the loop's time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

from millpond.base.values import dataclass

LINES_AT_ONCE_MAX: Final = 200
"""Of one event; after these, one line a second."""

TRACEBACK: Final = "traceback"
"""The one fact that has lines."""

WAITING_BYTES_MAX: Final = 256 << 10
"""What may wait for a reader; what comes on top of it is dropped and counted."""


@dataclass(slots=True)
class _Allowance:
    """Lines that may still be told of one event, one more each second; a traceback takes as many as it has."""

    lines: float
    since: float
    left_out: int = 0


Shape = Callable[[str, Mapping[str, object]], str]
"""Makes a line of an event and its facts, without its end."""


def as_text(event: str, facts: Mapping[str, object]) -> str:
    listed = "  ".join(f"{name}={_harmless(name, value)}" for name, value in facts.items())
    return f"{time.strftime('%H:%M:%S')}  {event}  {listed}".rstrip()


def _harmless(name: str, value: object) -> object:
    """Strangers choose names, and errors quote them: none begins a line of its own or speaks to a terminal."""
    text = str(value)
    return text if name == TRACEBACK or text.isprintable() else text.encode("unicode_escape").decode()


def as_json(event: str, facts: Mapping[str, object]) -> str:
    """Numbers stay numbers; what JSON does not know is told as text."""
    import json

    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": at, "event": event, **facts}, default=str)


SHAPES: Final[Mapping[str, Shape]] = {"text": as_text, "json": as_json}
"""By what `journal.format` says."""


class LineJournal:
    def __init__(
        self,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        shape: Shape = as_text,
    ) -> None:
        self.dropped_total = 0
        self._clock = clock
        self._shape = shape
        self._allowances: dict[str, _Allowance] = {}
        self._writer = _Writer(out or sys.stderr, self._tell_dropped)

    def __call__(self, event: str, **facts: object) -> None:
        now = self._clock()
        allowance = self._allowances.setdefault(event, _Allowance(LINES_AT_ONCE_MAX, now))
        allowance.lines = min(LINES_AT_ONCE_MAX, allowance.lines + now - allowance.since)
        allowance.since = now
        if allowance.lines < 1:
            allowance.left_out += 1
            return
        if allowance.left_out:
            facts["left_out_before"] = allowance.left_out
            allowance.left_out = 0
        text = self._shape(event, facts) + "\n"
        allowance.lines -= text.count("\n")
        # The one line that says why a process ended must not be among those for which there was no room.
        if not self._writer.put(text, always=TRACEBACK in facts):
            self.dropped_total += 1

    def _tell_dropped(self, count: int) -> str:
        if self._shape is as_text:
            return f"({count} events before this one were dropped: nobody read them in time)"
        return self._shape("events were dropped: nobody read them in time", {"count": count})

    def pass_on(self, line: str) -> None:
        """A line that another journal has made, with a limit of its own."""
        if not self._writer.put(line + "\n"):
            self.dropped_total += 1

    def flush(self, seconds: float = 1.0) -> bool:
        """Wait until everything is written, though not for ever; whether it is."""
        return self._writer.flush(seconds)


class _Writer:
    """Writes texts in their order on a thread that begins with the first of them."""

    def __init__(self, out: TextIO, tell_dropped: Callable[[int], str]) -> None:
        self._out = out
        self._tell_dropped = tell_dropped
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, text: str, *, always: bool = False) -> bool:
        """False when too much waits already: the text is dropped."""
        with self._changed:
            if not always and self._waiting_bytes + len(text) > WAITING_BYTES_MAX:
                self._dropped += 1
                return False
            if self._dropped:
                text = f"{self._tell_dropped(self._dropped)}\n{text}"
                self._dropped = 0
            self._waiting.append(text)
            self._waiting_bytes += len(text)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millpond-journal", daemon=True)
            self._thread.start()
        return True

    def flush(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                text = self._waiting[0]
            self._write(text)
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(text)
                self._changed.notify_all()

    def _write(self, text: str) -> None:
        try:
            descriptor = self._out.fileno()
        except (OSError, ValueError):
            self._out.write(text)
            return
        # Not through Python's own buffer: whoever else flushes it at the end would wait for our lock.
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            # The reader is gone. Nobody is left to be told of it.
            self._dropped += 1
