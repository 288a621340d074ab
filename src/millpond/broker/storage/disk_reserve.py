"""The disk reserve: a file that holds back disk space and is released when the disk is full.

Freeing space needs some space itself. While the reserve is released, the file is empty and only metadata may grow, so
that a node on a full disk can restart, delete topics and shorten retention. Writes resume once twice the reserve is
free and the file has been recreated: a single threshold would make the node flap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millpond.base.units import show_bytes

if TYPE_CHECKING:
    from millpond.base.ports import Disk
    from millpond.broker.loop.journal import Journal
    from millpond.log.room import DiskRoom

RESERVE_FILE: Final = "disk.reserve"
SHARE_MAX: Final = 20
"""The reserve takes at most one part in this many of the disk."""
ENOUGH: Final = 2
"""Writes resume with this many times the reserve free."""
PIECE_BYTES: Final = 1 << 20
TURN_BYTES: Final = 8 << 20
"""A large reserve is recreated in several steps, so as not to block the event loop."""


class DiskReserve:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        room: DiskRoom,
        size_bytes: int,
        journal: Journal,
        on_short: Callable[[], None],
    ) -> None:
        """`on_short` is called when the disk becomes full: this node can no longer keep up with leaders."""
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{RESERVE_FILE}"
        self._room = room
        self._wanted_bytes = size_bytes
        self._journal = journal
        self._on_short = on_short
        room.when_short(self._give_up)

    def prepare(self) -> None:
        """Create the reserve at startup, before any other write, or release it if the disk is full."""
        free_bytes, size = self._free_bytes(), self._size()
        if not size:
            return
        if self._disk.exists(self._path):
            if free_bytes < size or (not self._disk.size(self._path) and free_bytes < ENOUGH * size):
                self._room.is_short = True
                self._give_up()
                return
        elif free_bytes < ENOUGH * size:
            # The folder is from a version without a reserve.
            return
        self._make(size)

    def look(self) -> None:
        """Resume writes once there is enough free space. Called often."""
        if not self._room.is_short:
            return
        try:
            free_bytes, size = self._free_bytes(), self._size()
        except OSError:
            return
        if free_bytes + self._held_bytes() >= max(ENOUGH * size, 1) and (not size or self._make(size, TURN_BYTES)):
            self._room.is_short = False
            self._journal("disk has room again, accepting writes", free=show_bytes(free_bytes))

    def _give_up(self) -> None:
        self._empty()
        free = "?"
        with contextlib.suppress(OSError):
            free = show_bytes(self._free_bytes())
        self._journal(
            "disk is full, refusing writes",
            free=free,
            resume_at=show_bytes(ENOUGH * self._size()),
            remedy="delete topics or shorten retention",
        )
        self._on_short()

    def _make(self, size: int, most_bytes: int | None = None) -> bool:
        """Write at most `most_bytes` of the reserve; returns whether it is complete. Not sparse: that
        reserves nothing."""
        try:
            file = self._disk.open(self._path, create=True)
            try:
                held = file.size()
                end = size if most_bytes is None else min(size, held + most_bytes)
                while held < end:
                    file.append([bytes(min(PIECE_BYTES, end - held))])
                    held = file.size()
            finally:
                file.close()
        except OSError:
            self._empty()
            return False
        return end == size

    def _held_bytes(self) -> int:
        return self._disk.size(self._path) if self._disk.exists(self._path) else 0

    def _empty(self) -> None:
        with contextlib.suppress(OSError):
            file = self._disk.open(self._path)
            try:
                file.truncate(0)
            finally:
                file.close()

    def _free_bytes(self) -> int:
        return self._disk.free_bytes(self._folder)

    def _size(self) -> int:
        return min(self._wanted_bytes, self._disk.total_bytes(self._folder) // SHARE_MAX)
