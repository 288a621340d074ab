"""Jobs that remove files which nobody needs any more, some time from now, on a worker."""

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
    """Files of a log, in the order in which they must go.

    Jobs overtake each other, and may fail. So one of retired segments takes what is left of those before it along.
    """

    disk: Disk
    folder: str
    paths: tuple[str, ...] = ()
    delay_ms: int = 0
    away: Away = field(default_factory=Away)
    beginnings: int = 0
    number: int = 0
    """Up to which of all that were ever retired, if these are retired segments: which are left is seen when it
    begins."""
    is_replaced: bool = False
    """Whether a compaction has put another segment in place of these: no segment will ever have their names."""

    @property
    def is_tried_again(self) -> bool:
        """What a compaction has left that was given up is not: the next one gives its files the same names. Nor what
        a later job has to remove as well."""
        return self.is_replaced or (self.number > 0 and self.number == self.away.last_retired())

    def begin(self) -> bool:
        """On the loop, just before `run`: whether it is still wanted."""
        if self.away.closed or self.away.beginnings != self.beginnings:
            # The folder or the files of this name may be another log's by now.
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
            # What takes their place must be there for certain, or a crash would make the offsets start again.
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
                # A crash must find a log without its beginning, never one without its middle. Also where another job
                # has removed it: that one may not have come to its sync.
                self._sync()
        if failed is not None:
            raise failed

    def _sync(self) -> None:
        try:
            self.disk.sync_folder(self.folder)
        except FileNotFoundError:
            # The whole partition was deleted meanwhile.
            return


@dataclass(slots=True)
class Renames:
    """Folders of one data folder that were given other names, and how many of these names a power cut leaves."""

    folder: str
    made: int = 0
    kept: int = 0

    def keep(self, disk: Disk, number: int) -> None:
        """Make the first `number` of them last, and with them those that have been made since. On any thread."""
        if self.kept < number:
            made = self.made
            disk.sync_folder(self.folder)
            self.kept = made


@dataclass(slots=True, frozen=True)
class FolderRemovalJob:
    """A deleted partition's folder. May run on any thread, after a delay."""

    disk: Disk
    path: str
    renames: Renames
    number: int
    """Of its own renaming."""
    delay_ms: int = 0
    is_tried_again: ClassVar[bool] = True

    def begin(self) -> bool:
        """On the loop, just before `run`: nobody else ever has a folder of this name."""
        return True

    def end(self, *, is_done: bool) -> None:
        """On the loop, after `run`."""

    def run(self) -> None:
        # Or a power cut could leave its old name, which another partition may get, and nothing in it.
        self.renames.keep(self.disk, self.number)
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove_folder(self.path)
