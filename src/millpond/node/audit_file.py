"""The audit log as rotated files: lines are appended, a large file is replaced, the oldest is removed.

Each chapter has its own files, so that a busy one does not displace the others, and a thread that writes them. Lines
that cannot be written in time, because the disk is slow or full, are dropped and counted: the node continues, and the
next line that is written carries the number of missing ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millpond.base.settings import Settings
from millpond.broker.audit.audit import Chapter
from millpond.broker.security.authorizer import asks_for_rights
from millpond.config.node import DATA_FOLDER
from millpond.config.security import AUDIT_LOG, AUDIT_LOG_FILES, AUDIT_LOG_FOLDER, AUDIT_LOG_MAX_BYTES
from millpond.log.names import AUDIT_FOLDER
from millpond.node.private_files import FILE_MODE, make_private_folder

if TYPE_CHECKING:
    from millpond.broker.loop.journal import Journal

WAITING_BYTES_MAX: Final = 4 << 20
CLOSE_SECONDS: Final = 5.0


def open_audit(settings: Settings, journal: Journal) -> AuditFiles | None:
    """The audit log that these settings request, if any. OSError if its folder cannot be used."""
    asked = settings[AUDIT_LOG]
    if asked == "off" or (asked == "auto" and not asks_for_rights(settings)):
        return None
    make_private_folder(Path(settings[DATA_FOLDER]))
    folder = Path(settings[AUDIT_LOG_FOLDER] or Path(settings[DATA_FOLDER]) / AUDIT_FOLDER)
    return AuditFiles(folder, settings[AUDIT_LOG_MAX_BYTES], settings[AUDIT_LOG_FILES], journal)


class AuditFiles:
    """Takes lines with their chapter (by being called) until it is closed."""

    def __init__(self, folder: Path, bytes_max: int, files_max: int, journal: Callable[..., None]) -> None:
        self.by_chapter = {each: AuditFile(folder, bytes_max, files_max, journal, each.value) for each in Chapter}

    def __call__(self, line: str, chapter: Chapter) -> None:
        self.by_chapter[chapter](line)

    def flush(self, seconds: float) -> None:
        """Wait until everything is written, at most this long."""
        for each in self.by_chapter.values():
            each.flush(seconds / len(self.by_chapter))

    def close(self) -> None:
        for each in self.by_chapter.values():
            each.close()


class AuditFile:
    """Takes lines (by being called) until it is closed."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        files_max: int,
        journal: Callable[..., None] = lambda *_, **__: None,
        name: str = "audit",
    ) -> None:
        """`bytes_max` limits one file; `files_max` of them are kept, including the current one."""
        make_private_folder(folder)
        self.path = folder / f"{name}.jsonl"
        self._name = name
        self.dropped_total = 0
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._journal = journal
        self._has_failed = False
        self._dropped = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_closing = False
        self._changed = threading.Condition()
        self._descriptor = self._open()
        self._thread = threading.Thread(target=self._run, name="millpond-audit", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._is_closing or self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self._dropped += 1
                self.dropped_total += 1
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Whether everything is written by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def close(self) -> None:
        """Write what is queued, and sync it."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._is_closing)
                if not self._waiting:
                    break
                lines = list(self._waiting)
            self._write(lines)
            with self._changed:
                for line in lines:
                    self._waiting.popleft()
                    self._waiting_bytes -= len(line)
                self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._write_one(b"")
            os.fdatasync(self._descriptor)
        os.close(self._descriptor)

    def _write(self, lines: list[bytes]) -> None:
        for at, line in enumerate(lines):
            try:
                self._write_one(line)
            except OSError as error:
                with self._changed:
                    self._dropped += len(lines) - at
                    self.dropped_total += len(lines) - at
                if not self._has_failed:
                    self._has_failed = True
                    self._journal("cannot write the audit log", path=self.path, reason=error)
                return
        self._has_failed = False

    def _write_one(self, line: bytes) -> None:
        """Write a line with the number of missing ones before it. They count as missing until a line is written."""
        with self._changed:
            missing = self._dropped
        if missing:
            line = b'{"event":"dropped","count":%d}\n' % missing + line
        self._write_whole(line)
        with self._changed:
            self._dropped -= missing

    def _write_whole(self, line: bytes) -> None:
        size = os.fstat(self._descriptor).st_size
        if size and size + len(line) > self._bytes_max:
            self._turn()
            size = 0
        left = line
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            # Half a line would corrupt the next one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise

    def _turn(self) -> None:
        """Rotate: `audit.jsonl` becomes `audit.1.jsonl`, that one `audit.2.jsonl`, and so on; the last is removed."""
        os.fdatasync(self._descriptor)
        # If creating the new file failed the last time, the files are rotated already: once more would cost the
        # oldest.
        if self.path.exists():
            self._shift()
        fresh = self._open()
        before, self._descriptor = self._descriptor, fresh
        os.close(before)

    def _shift(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            older = self._numbered(number)
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._numbered(number - 1), older)
        if self._files_max == 1:
            self.path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self._name}.{number}.jsonl")

    def _open(self) -> int:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        size = os.fstat(descriptor).st_size
        with contextlib.suppress(OSError):
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # A crash left half a line, which would corrupt the next one.
                os.write(descriptor, b"\n")
        return descriptor
