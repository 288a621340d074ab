"""The names on a simulated disk: the live tree, and the tree that would survive a power cut.

Every creation, rename and removal is one `Change` in a journal until its folder is synced. A power cut keeps part of
the journal: a change survives only if every earlier change of the same names does.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias


def fault(code: int, path: str) -> OSError:
    """The error a real disk raises: OSError picks the subclass for the code."""
    return OSError(code, os.strerror(code), path)


@dataclass(slots=True, eq=False)
class Blob:
    """The bytes of one file: current, durable, and the unsynced writes between."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, data) of each write in order; data None is a truncation to position."""
    is_loss_untold: bool = False

    def write(self, position: int, data: bytes) -> None:
        _apply(self.live, position, data)
        self.unsynced.append((position, data))

    def truncate(self, size: int) -> None:
        _apply(self.live, size, None)
        self.unsynced.append((size, None))

    def sync(self) -> None:
        for position, data in self.unsynced:
            _apply(self.durable, position, data)
        self.unsynced.clear()

    def forget_unsynced(self) -> None:
        """The effect of a failed sync: the pages count as clean and can be read, but never reach the disk."""
        self.unsynced.clear()
        self.is_loss_untold = False

    def lose_untold(self) -> None:
        """The effect of a failed sync of the whole file system: the next sync of this file reports the error."""
        self.is_loss_untold |= bool(self.unsynced)
        self.unsynced.clear()

    def flip_bit(self, position: int, bit: int) -> None:
        for content in (self.live, self.durable):
            if position < len(content):
                content[position] ^= 1 << bit
        for index, (start, data) in enumerate(self.unsynced):
            if data is not None and start <= position < start + len(data):
                rotten = bytearray(data)
                rotten[position - start] ^= 1 << bit
                self.unsynced[index] = (start, bytes(rotten))

    def lose_power(self, random: Random) -> None:
        """Keep a prefix of the unsynced writes, torn anywhere; sometimes the size is ahead of the bytes."""
        kept = random.randint(0, len(self.unsynced))
        for position, data in self.unsynced[:kept]:
            _apply(self.durable, position, data)
        if kept < len(self.unsynced):
            position, data = self.unsynced[kept]
            if data:
                torn = data[: random.randint(0, len(data))]
                if random.random() < 0.25:
                    torn += bytes(random.randint(0, len(data) - len(torn)))
                _apply(self.durable, position, torn)
        self.unsynced.clear()
        self.is_loss_untold = False
        self.live = bytearray(self.durable)


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


@dataclass(slots=True, eq=False)
class Folder:
    number: int
    live: dict[str, Entry] = field(default_factory=dict)
    durable: dict[str, Entry] = field(default_factory=dict)


Entry: TypeAlias = Blob | Folder


@dataclass(slots=True, eq=False)
class Change:
    """Names that change atomically; None removes the name."""

    parts: list[tuple[Folder, str, Entry | None]]

    def names(self) -> list[tuple[int, str]]:
        return [(folder.number, name) for folder, name, _ in self.parts]

    def touches(self, folder: Folder) -> bool:
        return any(inside is folder for inside, _, _ in self.parts)


class Tree:
    """Folders and files by path, live and durable."""

    def __init__(self, folders: int = 1) -> None:
        self.folders = folders
        """The number of folders created so far, including before this tree."""
        self.root = Folder(0)
        self.journal: list[Change] = []

    def find(self, path: str) -> Entry:
        """The entry at `path`; raises FileNotFoundError or NotADirectoryError as a real disk would."""
        entry: Entry = self.root
        for name in _steps(path):
            if not isinstance(entry, Folder):
                raise fault(errno.ENOTDIR, path)
            if name not in entry.live:
                raise fault(errno.ENOENT, path)
            entry = entry.live[name]
        return entry

    def folder(self, path: str) -> Folder:
        entry = self.find(path)
        if not isinstance(entry, Folder):
            raise fault(errno.ENOTDIR, path)
        return entry

    def blob(self, path: str) -> Blob:
        entry = self.find(path)
        if not isinstance(entry, Blob):
            raise fault(errno.EISDIR, path)
        return entry

    def parent(self, path: str) -> tuple[Folder, str]:
        """The folder that holds `path`, and its name there."""
        steps = _steps(path)
        if not steps:
            raise fault(errno.EISDIR, path)
        return self.folder("/".join(steps[:-1])), steps[-1]

    def new_folder(self) -> Folder:
        self.folders += 1
        return Folder(self.folders)

    def change(self, *parts: tuple[Folder, str, Entry | None]) -> None:
        for folder, name, entry in parts:
            if entry is None:
                del folder.live[name]
            else:
                folder.live[name] = entry
        self.journal.append(Change(list(parts)))

    def sync_all(self) -> None:
        """Make every change durable, in the order in which they were made."""
        for change in self.journal:
            _make_durable(change)
        self.journal.clear()

    def sync(self, folder: Folder) -> None:
        """Make the changes of this folder durable, with the earlier changes they depend on."""
        needed: set[tuple[int, str]] = set()
        due: list[Change] = []
        rest: list[Change] = []
        for change in reversed(self.journal):
            names = change.names()
            if change.touches(folder) or not needed.isdisjoint(names):
                needed.update(names)
                due.append(change)
            else:
                rest.append(change)
        for change in reversed(due):
            _make_durable(change)
        self.journal = rest[::-1]

    def lose_power(self, random: Random) -> None:
        """Keep a valid part of the journal, then of every file's unsynced bytes; the result becomes live."""
        lost: set[tuple[int, str]] = set()
        # A journaling file system keeps a prefix; others may drop any change that no surviving change depends on.
        prefix = random.randint(0, len(self.journal)) if random.random() < 0.5 else None
        for index, change in enumerate(self.journal):
            drop = index >= prefix if prefix is not None else random.random() < 0.5
            if drop or not lost.isdisjoint(change.names()):
                lost.update(change.names())
            else:
                _make_durable(change)
        self.journal.clear()
        self._restart(self.root, random)

    def _restart(self, folder: Folder, random: Random) -> None:
        folder.live = dict(folder.durable)
        for _, entry in sorted(folder.live.items(), key=_by_name):
            if isinstance(entry, Folder):
                self._restart(entry, random)
            else:
                entry.lose_power(random)

    def blobs(self) -> Iterator[tuple[str, Blob]]:
        """Every live file with its path, sorted."""
        yield from _walk("/", self.root)


def _walk(path: str, folder: Folder) -> Iterator[tuple[str, Blob]]:
    for name, entry in sorted(folder.live.items(), key=_by_name):
        inner = posixpath.join(path, name)
        if isinstance(entry, Folder):
            yield from _walk(inner, entry)
        else:
            yield inner, entry


def _by_name(item: tuple[str, Entry]) -> str:
    return item[0]


def _make_durable(change: Change) -> None:
    for folder, name, entry in change.parts:
        if entry is None:
            folder.durable.pop(name, None)
        else:
            folder.durable[name] = entry


def _steps(path: str) -> list[str]:
    return [step for step in posixpath.normpath("/" + path).split("/") if step]
