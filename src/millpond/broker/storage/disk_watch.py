"""Logs a disk that fills up: before it is full, while writes are refused, and when there is free space again.

A refused batch is an error only for its producer, and most clients retry silently. So the node logs refusals, too, as
a count rather than one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millpond.base.ports import Clock, Disk
from millpond.broker.loop.journal import Journal
from millpond.log.room import DiskRoom

LOOK_MS: Final = 10_000
"""Interval between checks of the disk, and between log lines about refused batches."""

ENOUGH: Final = 1.1
"""Free space counts as recovered at this multiple of the low water mark, so that the log lines do not flap."""


class DiskWatch:
    def __init__(
        self,
        *,
        clock: Clock,
        disk: Disk,
        folder: str,
        low_water_bytes: Callable[[], int],
        journal: Journal,
        room: DiskRoom,
    ) -> None:
        self._clock = clock
        self._disk = disk
        self._folder = folder
        self._low_water_bytes = low_water_bytes
        self._journal = journal
        self._room = room
        self._look_at_ms = 0
        self._is_low = False
        self._refused = 0
        """Batches refused since the last log line."""
        self._refused_total = 0
        """Batches refused since refusals began; 0 while writes succeed."""
        self._reason = ""

    def on_refused(self, reason: str) -> None:
        """A client's batch could not be written."""
        self._refused += 1
        self._refused_total += 1
        self._reason = reason
        if self._refused_total == 1:
            self._tell_refused("writes are refused, this node cannot write")

    def look(self) -> None:
        """Check the disk once per `LOOK_MS`, however often this is called."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_MS
        self._look_at_room()
        if self._refused:
            self._tell_refused("writes are still refused")
        elif self._refused_total and not self._room.is_short:
            self._journal("no write is refused any more", refused_meanwhile=self._refused_total)
            self._refused_total = 0

    def _tell_refused(self, event: str) -> None:
        self._journal(event, batches=self._refused, free=self._shown_free(), reason=self._reason)
        self._refused = 0

    def _look_at_room(self) -> None:
        low_bytes = self._low_water_bytes()
        free_bytes = self._free_bytes()
        if free_bytes is None:
            return
        if free_bytes < low_bytes and not self._is_low:
            self._is_low = True
            self._journal("the disk is nearly full", free=_shown(free_bytes), low_water=_shown(low_bytes))
        elif self._is_low and free_bytes >= low_bytes * ENOUGH:
            self._is_low = False
            self._journal("the disk has room again", free=_shown(free_bytes))

    def _free_bytes(self) -> int | None:
        try:
            return self._disk.free_bytes(self._folder)
        except OSError:
            # The next write will report the error.
            return None

    def _shown_free(self) -> str:
        free_bytes = self._free_bytes()
        return "?" if free_bytes is None else _shown(free_bytes)


def _shown(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
