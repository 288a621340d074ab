"""The nodes of `millpond cluster up` as child processes: started, listened to, started again, ended in order."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Final, Literal

MILLPOND: Final = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())")
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 10.0
STEADY_SECONDS: Final = 30.0
"""A node that ran so long and then died is started again as quickly as at first."""

STOP_SECONDS_MAX: Final = 30.0

State = Literal["starting", "ready", "ended", "stopped"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a node did or said."""

    node_id: int
    kind: Literal["ready", "ended", "says"]
    text: str = ""


class Child:
    """One node: its process, life after life. What it does and says goes into `events`."""

    def __init__(self, node_id: int, arguments: Sequence[str], events: queue.Queue[Event]) -> None:
        self.node_id = node_id
        self.state: State = "stopped"
        self.starts = 0
        self.has_been_ready = False
        self.last_words = ""
        self.starts_again_at = 0.0
        self._pause_seconds = PAUSE_SECONDS
        self._arguments = arguments
        self._events = events
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.state != "ended" else None

    def start(self) -> None:
        self.starts += 1
        self.state = "starting"
        self._started_at = time.monotonic()
        process = self._process = subprocess.Popen(
            [*MILLPOND, "up", "--with-parent", *self._arguments],
            # The end of this pipe tells the node that we are gone, however we went.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is for us alone: the nodes end one after the other.
            start_new_session=True,
        )
        for work in (self._hear_output, self._hear_journal):
            threading.Thread(target=work, args=(process,), daemon=True).start()

    def on_event(self, event: Event) -> None:
        """Note what its process did; on the thread that drives the children."""
        match event.kind:
            case "ready":
                self.state, self.has_been_ready = "ready", True
            case "says":
                self.last_words = event.text
            case "ended":
                if self.state != "stopped":
                    self.state = "ended"
                if time.monotonic() - self._started_at > STEADY_SECONDS:
                    self._pause_seconds = PAUSE_SECONDS
                self.starts_again_at = time.monotonic() + self._pause_seconds
                self._pause_seconds = min(self._pause_seconds * 2, PAUSE_SECONDS_MAX)

    def stop(self, *, at_once: bool = False) -> None:
        """Ask it to end, or end it."""
        self.state = "stopped"
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _hear_output(self, process: subprocess.Popen[bytes]) -> None:
        """Its panel: the first line comes when it is ready, the end when it is gone."""
        assert process.stdout is not None
        if process.stdout.readline():
            self._events.put(Event(self.node_id, "ready"))
        while process.stdout.read(4096):
            pass
        code = process.wait()
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        self._events.put(Event(self.node_id, "ended", ended_how(code)))

    def _hear_journal(self, process: subprocess.Popen[bytes]) -> None:
        pipe: IO[bytes] | None = process.stderr
        assert pipe is not None
        for line in pipe:
            self._events.put(Event(self.node_id, "says", line.decode(errors="replace").rstrip()))


def ended_how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def stop_all(children: Iterable[Child], last: int = -1) -> bool:
    """End one after the other, the controller last: each hands over what it leads while there is somebody to take it.

    False: some did not end in time and were killed.
    """
    in_time = True
    for child in sorted(children, key=lambda child: child.node_id == last):
        child.stop()
        if not child.wait(STOP_SECONDS_MAX):
            in_time = False
            child.stop(at_once=True)
            child.wait(STOP_SECONDS_MAX)
    return in_time
