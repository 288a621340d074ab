"""Jobs that delete obsolete files, after a delay, on a worker."""

from __future__ import annotations

import contextlib
from dataclasses import field
from typing import ClassVar

from millpond.base.ports import Disk
from millpond.base.values import dataclass
from millpond.log.durability import Away
from millpond.log.names import LOG


@dataclass(slots=True)
class RemovalJob:
    """Files of a log, in the order in which they must be deleted.

    Jobs may overtake each other and fail. So a job for retired segments also deletes what is left of earlier ones.
    """

    disk: Disk
    folder: str
    paths: tuple[str, ...] = ()
    delay_ms: int = 0
    away: Away = field(default_factory=Away)
    beginnings: int = 0
    number: int = 0
    """For retired segments, the number of the last file: what is left is determined when the job begins."""
    is_replaced: bool = False
    """Whether a compaction replaced these files: no segment will ever reuse their names."""

    @property
    def is_tried_again(self) -> bool:
        """Whether a failed job is retried. Files of an abandoned compaction are not: the next one reuses their
        names. Nor are files that a later job deletes anyway."""
        return self.is_replaced or (self.number > 0 and self.number == self.away.last_retired())

    def begin(self) -> bool:
        """On the loop, just before `run`: whether it is still needed."""
        if self.away.closed or self.away.beginnings != self.beginnings:
            # The folder, or files of the same names, may belong to another log by now.
            self.away.asked = 0
            return False
        if self.number:
            self.paths = self.away.to_remove(self.number)
        self.away.others += 1
        return True

    def end(self, *, is_done: bool) -> None:
        """On the loop, after `run`."""
        self.away.others -= 1
        if is_done and self.number and self.away.beginnings == self.beginnings:
            self.away.are_removed(self.number)

    def run(self) -> None:
        if self.paths:
            # The replacement must be durable, or a crash would restart the offsets.
            self._sync()
        failed: OSError | None = None
        for path in self.paths:
            is_log = LOG in path.rpartition("/")[2]
            try:
                self.disk.remove(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                if is_log:
                    raise
                failed = error
            if is_log:
                # A crash must find a log without its beginning, never one without its middle. This also applies if
                # another job deleted the file: it may not have synced.
                self._sync()
        if failed is not None:
            raise failed

    def _sync(self) -> None:
        try:
            self.disk.sync_folder(self.folder)
        except FileNotFoundError:
            # The whole partition was deleted in the meantime.
            return


@dataclass(slots=True)
class Renames:
    """Renamed folders of one data folder, and how many of the renames are durable."""

    folder: str
    made: int = 0
    kept: int = 0

    def keep(self, disk: Disk, number: int) -> None:
        """Make the first `number` renames durable, and any made since. Safe on any thread."""
        if self.kept < number:
            made = self.made
            disk.sync_folder(self.folder)
            self.kept = made


@dataclass(slots=True, frozen=True)
class FolderRemovalJob:
    """A deleted partition's folder. Runs on any thread, after a delay."""

    disk: Disk
    folder: str
    renames: Renames
    number: int
    """The number of its own rename."""
    delay_ms: int = 0
    is_tried_again: ClassVar[bool] = True

    def begin(self) -> bool:
        """On the loop, just before `run`: always needed, as the folder's name is unique."""
        return True

    def end(self, *, is_done: bool) -> None:
        """On the loop, after `run`."""

    def run(self) -> None:
        # Otherwise a power cut could restore the old name, which another partition may have, with an empty folder.
        self.renames.keep(self.disk, self.number)
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove_folder(self.folder)
