"""The operator's log: one line per event on standard error, with the time, the event and its facts.

The default is text; on request each line is a JSON object with `time`, `event` and the facts.

A frequent event (such as a client of another protocol that reconnects many times a second) is logged in full for a
while, and then once a second with the number of lines left out. A separate thread writes: a standard error that is
not read, or is closed, costs lines, which are counted, but never blocks the loop.
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
"""Per event; after these, one line a second."""

TRACEBACK: Final = "traceback"
"""The only fact that may have several lines."""

WAITING_BYTES_MAX: Final = 256 << 10
"""What may be queued for a slow reader; anything beyond it is dropped and counted."""


@dataclass(slots=True)
class _Allowance:
    """Lines that may still be written for one event, one more each second; a traceback uses one per line."""

    lines: float
    since: float
    left_out: int = 0


Shape = Callable[[str, Mapping[str, object]], str]
"""Formats an event and its facts as a line, without the newline."""


def as_text(event: str, facts: Mapping[str, object]) -> str:
    listed = "  ".join(f"{name}={_harmless(name, value)}" for name, value in facts.items())
    return f"{time.strftime('%H:%M:%S')}  {event}  {listed}".rstrip()


def _harmless(name: str, value: object) -> object:
    """Clients choose names, and errors quote them: no value may start a new line or send terminal escapes."""
    text = str(value)
    return text if name == TRACEBACK or text.isprintable() else text.encode("unicode_escape").decode()


def as_json(event: str, facts: Mapping[str, object]) -> str:
    """Numbers stay numbers; other types that JSON lacks become text."""
    import json

    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": at, "event": event, **facts}, default=str)


SHAPES: Final[Mapping[str, Shape]] = {"text": as_text, "json": as_json}
"""By `journal.format`."""


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
        # The line that explains why a process exits must never be dropped.
        if not self._writer.put(text, always=TRACEBACK in facts):
            self.dropped_total += 1

    def _tell_dropped(self, count: int) -> str:
        if self._shape is as_text:
            return f"({count} events before this one were dropped: standard error was not read in time)"
        return self._shape("events were dropped: standard error was not read in time", {"count": count})

    def pass_on(self, line: str) -> None:
        """Write a line that another journal has formatted and rate-limited."""
        if not self._writer.put(line + "\n"):
            self.dropped_total += 1

    def flush(self, seconds: float = 1.0) -> bool:
        """Wait until everything is written, but not forever; whether it is."""
        return self._writer.flush(seconds)


class _Writer:
    """Writes texts in order on a thread that starts with the first of them."""

    def __init__(self, out: TextIO, tell_dropped: Callable[[int], str]) -> None:
        self._out = out
        self._tell_dropped = tell_dropped
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, text: str, *, always: bool = False) -> bool:
        """False if too much is queued already: the text is dropped."""
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
        # Not through Python's buffer: another flush of it at exit would wait for our lock.
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            # The reader is gone, so this cannot be reported.
            self._dropped += 1
