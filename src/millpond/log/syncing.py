"""What a worker thread does to make a log survive a power cut, packed so that it needs nothing of the log itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millpond.base.ids import Offset
from millpond.base.ports import Disk, File


@dataclass(slots=True)
class SyncTicket:
    """Everything below `offset` is safe once `run` has returned. Made and handed back on the loop."""

    offset: Offset
    generation: int
    """How often the log had been cut back by then: after another cut the ticket says nothing any more."""
    disk: Disk
    files: list[File]
    folders: list[str]
    replacements: list[tuple[str, bytes]] = field(default_factory=list)
    sealed_bases: list[int] = field(default_factory=list)
    named_bases: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Sync it all; OSError means that nothing may be acknowledged. May run on any thread."""
        for file in self.files:
            file.sync()
        # A file is only there after a power cut if its name is, too.
        for folder in self.folders:
            self.disk.sync_folder(folder)
        for path, data in self.replacements:
            self.disk.replace(path, data)

    def release(self) -> None:
        """Back on the loop: let the files go."""
        for file in self.files:
            file.release()
        self.files = []


@dataclass(slots=True, frozen=True)
class RemovalJob:
    """Files or folders that nobody needs any more. `run` may run on any thread, some time later."""

    disk: Disk
    paths: tuple[str, ...]
    is_folder: bool = False
    delay_ms: int = 0
    then: Callable[[], None] | None = None

    def run(self) -> None:
        for path in self.paths:
            try:
                if self.is_folder:
                    self.disk.remove_folder(path)
                else:
                    self.disk.remove(path)
            except FileNotFoundError:
                continue
