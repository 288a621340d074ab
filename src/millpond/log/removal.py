"""Jobs that remove files which nobody needs any more, some time from now, on a worker."""

from __future__ import annotations

from dataclasses import field, replace

from millpond.base.ports import Disk
from millpond.base.values import dataclass
from millpond.log.durability import Away
from millpond.log.names import LOG


@dataclass(slots=True, frozen=True)
class RemovalJob:
    """Files of a log, in the order in which they must go."""

    disk: Disk
    folder: str
    paths: tuple[str, ...] = ()
    delay_ms: int = 0
    away: Away = field(default_factory=Away)
    beginnings: int = 0

    def joined(self, later: RemovalJob) -> RemovalJob:
        """Both in one, for files of the same log."""
        return replace(self, paths=self.paths + later.paths)

    def begin(self) -> bool:
        """On the loop, just before `run`: whether it is still wanted."""
        if self.away.closed or self.away.beginnings != self.beginnings:
            # The folder or the files of this name may be another log's by now.
            return False
        self.away.others += 1
        return True

    def end(self) -> None:
        """On the loop, after `run`."""
        self.away.others -= 1

    def run(self) -> None:
        if self.paths:
            # What takes their place must be there for certain, or a crash would make the offsets start again.
            self._sync()
        for path in self.paths:
            try:
                self.disk.remove(path)
            except FileNotFoundError:
                continue
            if LOG in path:
                # A crash must find a log without its beginning, never one without its middle.
                self._sync()

    def _sync(self) -> None:
        try:
            self.disk.sync_folder(self.folder)
        except FileNotFoundError:
            # The whole partition was deleted meanwhile.
            return


@dataclass(slots=True, frozen=True)
class FolderRemovalJob:
    """A deleted partition's folder. May run on any thread, after a delay."""

    disk: Disk
    path: str
    delay_ms: int = 0

    def begin(self) -> bool:
        """On the loop, just before `run`: nobody else ever has a folder of this name."""
        return True

    def end(self) -> None:
        """On the loop, after `run`."""

    def run(self) -> None:
        try:
            self.disk.remove_folder(self.path)
        except FileNotFoundError:
            return
