"""Nodes as child processes of one command (`millpond cluster up`, `millpond up --cores`): starts, watches, restarts
and stops them in order."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final, Literal

from millpond.base.interpreter import PYTHON
from millpond.cli.cluster.spare import Spare, begin
from millpond.node.signals import stop_signals

NODE: Final = ("up", "--with-parent")
"""Runs a node as a child, which ends when its standard input does."""

MILLPOND: Final = (*PYTHON, "-c", "import sys; from millpond.cli import main; sys.exit(main())")
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 10.0
STEADY_SECONDS: Final = 30.0
"""A node that ran at least this long before it died is restarted without backoff."""

STOP_SECONDS_MAX: Final = 30.0
TURN_SECONDS: Final = 0.2
LAST_WORDS_SECONDS: Final = 1.0

State = Literal["starting", "ready", "ended", "stopped"]


@dataclass(frozen=True, slots=True)
class Event:
    """A change of state of a node, or a line that it logged."""

    node_id: int
    kind: Literal["ready", "ended", "says"]
    text: str = ""


class Child:
    """One node and its process, which may be restarted. Reports to `events`."""

    def __init__(
        self,
        node_id: int,
        arguments: Sequence[str],
        events: queue.Queue[Event],
        pause_seconds: float = PAUSE_SECONDS,
        spare: Spare | None = None,
    ) -> None:
        """`arguments` are those of `millpond`.

        It is restarted after `pause_seconds`, later if it dies again soon. A ready `spare` process becomes its next
        one.
        """
        self.node_id = node_id
        self.state: State = "stopped"
        self.starts = 0
        self.has_been_ready = False
        self.last_words = ""
        self.starts_again_at = 0.0
        self._first_pause_seconds = self._pause_seconds = pause_seconds
        self._arguments = arguments
        self._spare = spare
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
        process = None if self._spare is None else self._spare.take(self._arguments)
        if process is None:
            process = begin([*MILLPOND, *self._arguments])
        self._process = process
        journal = threading.Thread(target=self._hear_journal, args=(process,), daemon=True)
        journal.start()
        threading.Thread(target=self._hear_output, args=(process, journal), daemon=True).start()

    def on_event(self, event: Event) -> None:
        """Applies an event; called on the thread that drives the children."""
        match event.kind:
            case "ready":
                self.state, self.has_been_ready = "ready", True
            case "says":
                self.last_words = event.text
            case "ended":
                if self.state != "stopped":
                    self.state = "ended"
                if time.monotonic() - self._started_at > STEADY_SECONDS:
                    self._pause_seconds = self._first_pause_seconds
                self.starts_again_at = time.monotonic() + self._pause_seconds
                self._pause_seconds = min(max(self._pause_seconds * 2, PAUSE_SECONDS), PAUSE_SECONDS_MAX)

    def stop(self, *, at_once: bool = False) -> None:
        """Terminates it, or kills it `at_once`."""
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

    def _hear_output(self, process: subprocess.Popen[bytes], journal: threading.Thread) -> None:
        """Reads its output: the first line means that it is ready, the end that it has exited."""
        assert process.stdout is not None
        if process.stdout.readline():
            self._events.put(Event(self.node_id, "ready"))
        while process.stdout.read(4096):
            pass
        code = process.wait()
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        # Its last log line says why.
        journal.join(LAST_WORDS_SECONDS)
        self._events.put(Event(self.node_id, "ended", ended_how(code)))

    def _hear_journal(self, process: subprocess.Popen[bytes]) -> None:
        pipe: IO[bytes] | None = process.stderr
        assert pipe is not None
        for line in pipe:
            self._events.put(Event(self.node_id, "says", line.decode(errors="replace").rstrip()))


def ended_how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def without_time(text: str) -> str:
    """Strips the time from a node's log line, because this command prints its own."""
    clock, gap, rest = text.partition("  ")
    return rest if gap and len(clock) == 8 and clock[2:3] == clock[5:6] == ":" else text


class CannotRun(Exception):
    """A child exited before it was ready and would do so again; the text names the child and the reason."""


class Supervisor:
    """All children of one command. `word` is what one of them is called, `say` prints a line."""

    def __init__(
        self,
        word: str,
        children: Mapping[int, Child],
        events: queue.Queue[Event],
        say: Callable[[Child | None, str], None],
        *,
        restart: bool = True,
    ) -> None:
        self.children = children
        self._word = word
        self._events = events
        self._say = say
        self._restart = restart

    @property
    def is_ready(self) -> bool:
        return all(child.state == "ready" for child in self.children.values())

    def start(self) -> None:
        for child in self.children.values():
            child.start()

    def turn(self) -> None:
        """Handles events for a moment and restarts children that have ended."""
        deadline = time.monotonic() + TURN_SECONDS
        while (left := min(deadline, self._next_start()) - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                break
            self._hear(event)
        if self._restart:
            for child in self.children.values():
                if child.state == "ended" and time.monotonic() >= child.starts_again_at:
                    child.start()

    def drain(self) -> None:
        """Handles the events so far, without restarting anything."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._hear(self._events.get(timeout=TURN_SECONDS))

    def _next_start(self) -> float:
        return min(
            (child.starts_again_at for child in self.children.values() if child.state == "ended" and self._restart),
            default=float("inf"),
        )

    def _hear(self, event: Event) -> None:
        child = self.children[event.node_id]
        child.on_event(event)
        match event.kind:
            case "says":
                self._say(child, event.text)
            case "ended" if child.state == "stopped":
                pass  # It was asked to stop.
            case "ended":
                self._on_end(child, event.text)
            case "ready":
                self._say(child, f"ready, pid {child.pid}")

    def _on_end(self, child: Child, how: str) -> None:
        if not child.has_been_ready and not self._restart_helps(how):
            # A restart would fail for the same reason.
            why = child.last_words.removeprefix("millpond: ") or how
            raise CannotRun(f"{self._word.capitalize()} {child.node_id} cannot start: {why}")
        pause = max(child.starts_again_at - time.monotonic(), 0)
        when = f"in {pause:.1f} s" if pause else "at once"
        self._say(child, f"{how}; restarting {when}" if self._restart else how)

    def _restart_helps(self, how: str) -> bool:
        return self._restart and how not in ("exited with code 1", "exited with code 2")

    def end(self, stages: Iterable[Iterable[Child]]) -> bool:
        """Stops all, one stage after the other; a second signal kills them at once.

        False if some did not stop in time and were killed.
        """
        self._say(None, "stopping")

        def at_once(*_: object) -> None:
            for child in self.children.values():
                child.stop(at_once=True)

        for number in stop_signals():
            signal.signal(number, at_once)
        in_time = True
        for stage in stages:
            in_time = _end_together(list(stage)) and in_time
        return in_time


def _end_together(children: Sequence[Child]) -> bool:
    for child in children:
        child.stop()
    in_time = True
    deadline = time.monotonic() + STOP_SECONDS_MAX
    for child in children:
        if not child.wait(max(deadline - time.monotonic(), 0)):
            in_time = False
            child.stop(at_once=True)
            child.wait(STOP_SECONDS_MAX)
    return in_time
