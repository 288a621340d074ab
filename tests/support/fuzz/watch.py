"""What a process must not do while it serves strangers: take long, use much memory, open files."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from support.cpu import slowness

T = TypeVar("T")

TURN_SECONDS_MAX = 0.02
"""In CPU time, so that a busy machine does not fail the test."""

WORTH_A_LOOK_SECONDS = 0.01

ENDLESS_SECONDS = 20.0
"""CPU time for the turns of one connection, a thousand times what they normally take."""

LEAP_BYTES_MAX = 64 << 20
"""How much one request may add to the memory of the process."""

TIDY_FRAMES = 4_000
"""How often garbage is collected, and not in between: most of what a collection walks is the campaign's own."""

OPENED = "went outside"
"""Marks the finding of an opened file or a started process."""

_OUTSIDE = frozenset(
    [
        *("open", "os.mkdir", "os.remove", "os.rename", "os.listdir", "os.scandir", "socket.connect", "socket.bind"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"),
    ]
)


class Found(Exception):
    """Something that must not happen."""


class Slow(Found):
    """A turn of the loop that took too long: by itself, or because the machine was busy."""


class _Doors:
    """Watches every file that is opened and every process that is started, while it listens.

    Only in the thread that started it: the nodes and clients of other tests may run in the same process.
    """

    def __init__(self) -> None:
        self.listens = False
        self.passed: list[str] = []
        self._thread = 0
        self._is_hooked = False

    def begin(self) -> None:
        if not self._is_hooked:
            # An audit hook cannot be removed.
            sys.addaudithook(self._hear)
            self._is_hooked = True
        self.passed.clear()
        self._thread = threading.get_ident()
        self.listens = True

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        # Importing a module on first use is our own doing, whichever client caused it.
        if not self.listens or event not in _OUTSIDE or threading.get_ident() != self._thread:
            return
        if not _is_import(sys._getframe(1)):
            self.passed.append(f"{event} {arguments[:1]}")


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


DOORS = _Doors()


class Endless:
    """Aborts an endless turn: otherwise the campaign would hang together with the node, without a report."""

    def __enter__(self) -> Endless:
        self._before = signal.signal(signal.SIGVTALRM, self._on_end)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._before)

    def begin(self) -> None:
        """Restart the count."""
        signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS_SECONDS)

    def _on_end(self, _: int, frame: FrameType | None) -> None:
        raise Found(f"it takes no end: {''.join(traceback.format_stack(frame)[-6:])}")


class Turn:
    """Measures each turn of the loop in CPU time, so that a busy machine does not fail the test."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.most_items = 0
        """The most list items that a handler got in one turn."""
        self._items = 0
        self._began = 0.0
        self._top_bytes = 0
        # What an earlier test left must not be freed while this one is measured.
        gc.unfreeze()
        gc.collect()
        _forget_top_memory()

    def begin(self) -> None:
        self._began = time.thread_time()

    def end(self, what: object) -> None:
        """The turn is over, and the next one begins."""
        self._items = 0
        now = time.thread_time()
        took = now - self._began
        if took > WORTH_A_LOOK_SECONDS:
            # Scaled, so that a slow machine does not fail the test.
            took /= slowness()
            now = time.thread_time()
        self._began = now
        if took > self.longest_seconds:
            self.longest_seconds = took
            if took > TURN_SECONDS_MAX:
                raise Slow(f"{what} took {1000 * took:.0f} ms of the loop")

    def take_items(self, items: int, at_once: int, what: object) -> None:
        """A handler gets this many items, and may get this many at once."""
        self._items += items
        self.most_items = max(self.most_items, self._items)
        if items > at_once:
            raise Found(f"{what}: {items} items are handled at once, {at_once} at most may be")

    def leave_out(self, job: Callable[[], T]) -> Callable[[], T]:
        """The same job, with its time left out of the turn."""

        def run() -> T:
            began = time.thread_time()
            try:
                return job()
            finally:
                self._began += time.thread_time() - began

        return run

    def forget_peak(self) -> None:
        """Measure from the memory in use now, not from its peak so far."""
        listened, DOORS.listens = DOORS.listens, False
        _forget_top_memory()
        DOORS.listens = listened
        self._top_bytes = top_memory_bytes()

    def weigh(self, what: object) -> None:
        """Whether the process has grown much since the last measurement."""
        top_bytes = top_memory_bytes()
        before, self._top_bytes = self._top_bytes, top_bytes
        if before and top_bytes - before > LEAP_BYTES_MAX:
            raise Found(f"{what} took {(top_bytes - before) >> 20} MiB of memory")
        if DOORS.passed:
            passed = DOORS.passed.copy()
            DOORS.passed.clear()
            raise Found(f"{what} {OPENED}: {passed[:5]}")


def _forget_top_memory() -> None:
    """An earlier peak would hide what the process uses now; Linux resets the peak on request."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def top_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def open_files() -> int:
    """How many descriptors the process has; 0 if other threads may open some: `DOORS` sees only our own."""
    is_alone = len(os.listdir("/proc/self/task")) == 1
    return len(os.listdir("/proc/self/fd")) if is_alone else 0


def memory_bytes() -> int:
    listened, DOORS.listens = DOORS.listens, False
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        DOORS.listens = listened


def calm_collector() -> None:
    """Much as a node does once it has started. What a previous run has left is collected first."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.disable()
