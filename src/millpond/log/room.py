"""Whether the disk has space for records: shared by all logs of a data folder.

Once a write has failed for lack of space, all logs except the metadata log refuse to grow until the observer has
found enough space (`broker.disk_reserve`). What is left is needed to delete topics or shorten retention. Without an
observer every write is attempted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from millpond.base.errors import ErrorCode, Refused

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class DiskRoom:
    __slots__ = ("_on_short", "is_short")

    def __init__(self) -> None:
        self.is_short = False
        self._on_short: Callable[[], None] | None = None

    def when_short(self, observer: Callable[[], None]) -> None:
        """Call `observer` when a write has failed for lack of space; it resets `is_short`."""
        self._on_short = observer

    def refusal(self, folder: str, error: OSError) -> Refused:
        """The refusal for a failed write to the log in this folder."""
        if error.errno not in NO_ROOM:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{folder}: {error}")
        if not self.is_short and self._on_short is not None:
            self.is_short = True
            self._on_short()
        return _full(folder)

    def check(self, folder: str) -> None:
        """Refused while the disk is full."""
        if self.is_short:
            raise _full(folder)


def _full(folder: str) -> Refused:
    return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{folder}: No space left on device")
