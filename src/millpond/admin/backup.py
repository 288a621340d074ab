"""Backs up a node's data folder while the node runs: checked and incremental.

Only what cannot be rebuilt is copied: batches, metadata snapshots, the folder's identity and log start offsets.
Indexes and producer state are rebuilt from the batches when the node starts. Every stored file is named by its
content, and the manifest, which maps paths to stored files, is replaced last: an interrupted backup leaves the
previous one intact, and the next run continues with what is stored.

It is a snapshot of one moment (`moment`), however long it takes. A folder of several cores is one backup.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from millpond.admin.moment import LogState, Moment, find_moment, look_at
from millpond.broker.data_folder.election_state import STATE_FILE
from millpond.broker.data_folder.identity import IDENTITY_FILE, CannotStart, Identity, read_identity
from millpond.broker.data_folder.restored import RESTORE_FILE
from millpond.broker.replication.high_watermarks import FILE as HIGH_WATERMARKS_FILE
from millpond.log.names import (
    CORES_FOLDER,
    LOCK_FILE,
    METADATA_FILE,
    SECURE_MARK,
    SECURITY_FOLDER,
    START_FILE,
    read_partition_folder,
)
from millpond.log.scan import sound_end
from millpond.metadata.partition import METADATA_PARTITION
from millpond.node.disk import RealDisk
from millpond.node.private_files import make_private_folder, private_opener

MANIFEST: Final = "manifest.json"
PARTIAL: Final = "manifest.partial"
"""The files that an interrupted backup has stored, one per line."""
STORED: Final = "files"
VERSION: Final = 1

TOP_FILES: Final = (START_FILE, HIGH_WATERMARKS_FILE, IDENTITY_FILE, SECURE_MARK)
CHUNK: Final = 1 << 20
WRITING_SECONDS: Final = 0.05
TRIES: Final = 10
"""How often a partition is listed again because its files changed meanwhile."""

Progress = Callable[[int], None]
"""Called with the number of bytes done."""


class BackupFault(Exception):
    """The text says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of the data folder, as stored."""

    path: str
    """Path in the data folder."""
    size: int
    crc: int
    inode: int = 0
    changed_ns: int = 0
    """Inode and modification time of the source file: if both are unchanged, it need not be read again."""
    damage: str | None = None
    """The damage that the source had."""

    @property
    def name(self) -> str:
        """Its path among the stored files."""
        return f"{self.path}.{self.size:x}-{self.crc:08x}"


@dataclass(frozen=True, slots=True)
class Manifest:
    cluster_id: str | None
    node_id: int
    rescues: int
    began_ms: int
    ended_ms: int
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)

    @property
    def damaged(self) -> list[StoredFile]:
        return [each for each in self.files if each.damage is not None]

    @property
    def partitions(self) -> int:
        folders = {PurePosixPath(each.path).parent for each in self.files}
        return sum(read_partition_folder(each.name) not in (None, METADATA_PARTITION) for each in folders)

    @property
    def roots(self) -> list[str]:
        """The data folders in it, one per core; the first is the node's own."""
        return sorted({each.path.removesuffix(IDENTITY_FILE) for each in self.files if _is_identity(each.path)})


@dataclass(slots=True)
class Result:
    manifest: Manifest
    copied_files: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0
    """Bytes that an earlier backup had already."""
    is_one_moment: bool = True
    """Whether it is a consistent snapshot of all partitions, with every transaction whole."""
    deleted: tuple[str, ...] = ()
    """Partitions that were deleted meanwhile: the backup has only their metadata."""


# Backing up.


def back_up(
    source: Path,
    target: Path,
    now_ms: Callable[[], int],
    on_progress: Progress = lambda _: None,
    *,
    checks_stored: bool = True,
) -> Result:
    """Updates the backup in `target` to the current state of the data folder `source`, whose node may run.

    Stored files are verified and copied again if damaged; without `checks_stored` only their sizes are compared.
    Raises OSError if the disk fails; the next run continues with what was stored.
    """
    run = _Backup(source, target, on_progress, checks_stored)
    identity = run.check()
    with only_one(target, f"another backup into {target} is under way: wait until it ends"):
        return run.run(identity, now_ms)


@contextmanager
def only_one(folder: Path, otherwise: str) -> Iterator[None]:
    """Locks the folder; raises BackupFault if another process has the lock."""
    try:
        lock = RealDisk().lock(str(folder / LOCK_FILE))
    except BlockingIOError:
        raise BackupFault(otherwise) from None
    try:
        yield
    finally:
        lock.release()


@dataclass(slots=True)
class _Backup:
    source: Path
    target: Path
    on_progress: Progress
    checks_stored: bool = True
    sound: set[str] = field(default_factory=set)
    """Stored files that this run has written or verified."""
    disk: RealDisk = field(default_factory=RealDisk)
    stored_before: dict[str, StoredFile] = field(default_factory=dict)
    collected: dict[str, StoredFile] = field(default_factory=dict)
    moment: Moment = field(default_factory=lambda: Moment({}, is_one=True))
    is_one_moment: bool = True
    deleted: list[str] = field(default_factory=list)
    copied_files: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0

    def check(self) -> Identity:
        """Checks the source, and checks or creates the target."""
        try:
            identity = read_identity(self.disk, str(self.source))
        except CannotStart as fault:
            raise BackupFault(str(fault)) from fault
        if identity is None:
            raise BackupFault(f"{self.source} is not the data folder of a node{_instead(self.source)}")
        if (self.source / RESTORE_FILE).exists():
            raise BackupFault(f"{self.source} is being restored: finish that first")
        if self.target.resolve().is_relative_to(self.source.resolve()):
            raise BackupFault(f"{self.target} is in the data folder itself: name another folder, on another disk")
        files = self.target / STORED
        if self.target.exists() and not files.exists() and any(self.target.iterdir()):
            raise BackupFault(f"{self.target} holds something other than a backup: name an empty or new folder")
        # The copy must be as private as the data folder.
        make_private_folder(self.target)
        make_private_folder(files)
        return identity

    def run(self, identity: Identity, now_ms: Callable[[], int]) -> Result:
        began_ms = now_ms()
        self._load_stored(identity)
        roots = ["", *_core_folders(self.source)]
        # First, so that it is never ahead of the logs.
        for root in roots:
            for name in TOP_FILES:
                with contextlib.suppress(FileNotFoundError):
                    self._take_small(f"{root}{name}")
        for file in sorted((self.source / SECURITY_FOLDER).glob("[!.]*")):
            # Without it the restored node would not be secure.
            if file.is_file():
                self._take_small(f"{SECURITY_FOLDER}/{file.name}")
        self.moment = find_moment(self.source, roots)
        self.is_one_moment = self.moment.is_one
        for folder in self.moment.logs:
            self._take_folder(folder)
        manifest = Manifest(
            identity.cluster_id,
            identity.node_id,
            identity.rescues,
            began_ms,
            now_ms(),
            tuple(self.collected[path] for path in sorted(self.collected)),
        )
        self._end(manifest)
        return Result(
            manifest, self.copied_files, self.copied_bytes, self.kept_bytes, self.is_one_moment, tuple(self.deleted)
        )

    def _load_stored(self, identity: Identity) -> None:
        """The files that are stored already."""
        with contextlib.suppress(FileNotFoundError):
            before = read_manifest(self.target)
            if (before.cluster_id, before.node_id) != (identity.cluster_id, identity.node_id):
                raise BackupFault(
                    f"{self.target} holds the backup of node {before.node_id} of cluster {before.cluster_id}: name "
                    "another folder"
                )
            self.stored_before = {each.path: each for each in before.files}
        for stored in _partial(self.target):
            self.stored_before[stored.path] = stored

    def _take_folder(self, folder: str) -> None:
        seen = self.moment.logs[folder]
        for _ in range(TRIES):
            now = look_at(self.source / folder)
            if not (self.source / folder).exists():
                # Its topic was deleted meanwhile.
                self.deleted.append(folder)
                return
            if not now.files:
                # It was just created or reset, or it is not a partition at all.
                time.sleep(WRITING_SECONDS)
                continue
            logs = seen.remaining_in(now)
            if logs is None:
                # Compacted or truncated meanwhile: the earlier state no longer exists.
                seen = now
            else:
                try:
                    self._take_files(folder, seen, logs)
                    if seen.remaining_in(look_at(self.source / folder)) is not None:
                        self.is_one_moment &= seen is self.moment.logs[folder]
                        return
                except FileNotFoundError:
                    # Retention removes segments and compaction adds some: list again.
                    pass
            self.collected = {
                path: each for path, each in self.collected.items() if not path.startswith(f"{folder}/")
            }
        if look_at(self.source / folder).files:
            raise BackupFault(f"{self.source / folder} changes faster than it can be copied: try again")

    def _take_files(self, folder: str, seen: LogState, logs: Sequence[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._take_small(f"{folder}/{METADATA_FILE}")
        if PurePosixPath(folder).name == METADATA_PARTITION.folder:
            # The snapshots first: the log continues from the oldest of them.
            for name in seen.snapshots:
                self._take_small(f"{folder}/{name}")
            with contextlib.suppress(FileNotFoundError):
                self._take_small(f"{folder}/{STATE_FILE}")
        for name in logs:
            is_last = name == logs[-1]
            self._take_log(f"{folder}/{name}", is_last=is_last, limit=seen.size if is_last else None)

    def _take_small(self, path: str) -> None:
        data = (self.source / path).read_bytes()
        stored = StoredFile(path, len(data), zlib.crc32(data))
        self._store(stored, iter((data,)))

    def _take_log(self, path: str, *, is_last: bool, limit: int | None = None) -> None:
        file = self.source / path
        before = file.stat()
        earlier = self.stored_before.get(path)
        is_same = earlier is not None and (earlier.inode, earlier.changed_ns) == (before.st_ino, before.st_mtime_ns)
        is_all = limit is None or before.st_size <= limit
        if earlier is not None and is_same and is_all and earlier.size == before.st_size and self._is_stored(earlier):
            self.kept_bytes += earlier.size
            self._note(earlier)
            return
        end, damage = sound_end(self.disk, str(file), limit)
        tries = TRIES
        while damage is not None and is_last and tries:
            # The node may be writing right now.
            time.sleep(WRITING_SECONDS)
            before, tries = file.stat(), tries - 1
            end, damage = sound_end(self.disk, str(file), limit)
        size = end if is_last else before.st_size
        with file.open("rb") as opened:
            crc = 0
            for piece in pieces_of(opened.fileno(), size):
                crc = zlib.crc32(piece, crc)
            if os.fstat(opened.fileno()).st_size < size:
                # Truncated by its leader: what was read may be inconsistent.
                raise FileNotFoundError(errno.ENOENT, "cut back", str(file))
            # What was appended since is left to the next backup.
            changed_ns = before.st_mtime_ns if size == before.st_size else 0
            stored = StoredFile(
                path, size, crc, before.st_ino, changed_ns, None if damage is None else f"{damage}"[:200]
            )
            self._store(stored, pieces_of(opened.fileno(), size))

    def _is_stored(self, stored: StoredFile) -> bool:
        """Whether the backup has this content, undamaged."""
        path = self.target / STORED / stored.name
        if stored.name in self.sound:
            return True
        try:
            if path.stat().st_size != stored.size:
                return False
            is_sound = not self.checks_stored or _crc_of(path, stored.size) == stored.crc
        except FileNotFoundError:
            return False
        if is_sound:
            self.sound.add(stored.name)
        return is_sound

    def _store(self, stored: StoredFile, pieces: Iterator[bytes]) -> None:
        if not self._is_stored(stored):
            path = self.target / STORED / stored.name
            make_private_folder(path.parent)
            write_checked(path, pieces, stored)
            self.sound.add(stored.name)
            self.copied_files += 1
            self.copied_bytes += stored.size
        else:
            self.kept_bytes += stored.size
        self._note(stored)

    def _note(self, stored: StoredFile) -> None:
        # Remembered, so that listing a folder again does not read its files again.
        self.collected[stored.path] = self.stored_before[stored.path] = stored
        with open(self.target / PARTIAL, "a", encoding="utf-8", opener=private_opener) as partial:
            partial.write(json.dumps(asdict(stored)) + "\n")
        self.on_progress(self.copied_bytes + self.kept_bytes)

    def _end(self, manifest: Manifest) -> None:
        for folder, _, _ in os.walk(self.target / STORED):
            self.disk.sync_folder(folder)
        self.disk.replace(str(self.target / MANIFEST), _encode(manifest))
        (self.target / PARTIAL).unlink(missing_ok=True)
        # Files that only the previous backup needed are deleted last.
        needed = {each.name for each in manifest.files}
        for folder, _, names in os.walk(self.target / STORED):
            for name in names:
                path = Path(folder) / name
                if str(path.relative_to(self.target / STORED)) not in needed:
                    path.unlink()


def _is_identity(path: str) -> bool:
    return PurePosixPath(path).name == IDENTITY_FILE


def _core_folders(source: Path) -> list[str]:
    """The folders of all cores but the first, which is in the folder itself."""
    try:
        names = os.listdir(source / CORES_FOLDER)
    except FileNotFoundError:
        return []
    numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    roots = [f"{CORES_FOLDER}/{number}/" for number in numbers]
    return [root for root in roots if (source / root / IDENTITY_FILE).exists()]


def _instead(folder: Path) -> str:
    """A hint, if the parent of data folders was named."""
    inside = sorted(path.parent.name for path in folder.glob(f"*/{IDENTITY_FILE}"))
    return f", but holds some ({', '.join(inside[:10])}): name one of them" if inside else ""


def pieces_of(descriptor: int, size: int) -> Iterator[bytes]:
    position = 0
    while position < size:
        piece = os.pread(descriptor, min(CHUNK, size - position), position)
        if not piece:
            raise FileNotFoundError(errno.ENOENT, "cut back")
        yield piece
        position += len(piece)


def _crc_of(path: Path, size: int) -> int:
    with path.open("rb") as file:
        crc = 0
        for piece in pieces_of(file.fileno(), size):
            crc = zlib.crc32(piece, crc)
    return crc


def write_checked(path: Path, pieces: Iterator[bytes], expected: StoredFile) -> None:
    """Copies atomically: complete, checked and synced, or not at all."""
    part = path.with_name(path.name + ".part")
    crc = size = 0
    with open(part, "wb", opener=private_opener) as out:
        for piece in pieces:
            out.write(piece)
            crc, size = zlib.crc32(piece, crc), size + len(piece)
        out.flush()
        os.fsync(out.fileno())
    if (crc, size) != (expected.crc, expected.size):
        part.unlink()
        # A segment was truncated and rewritten meanwhile; for a stored file, damage.
        raise FileNotFoundError(errno.ENOENT, "changed while it was copied", str(path))
    part.rename(path)


# The manifest.


def _encode(manifest: Manifest) -> bytes:
    fields = {"version": VERSION, **asdict(manifest)}
    body = json.dumps(fields, indent=1).encode()
    return json.dumps({"crc": zlib.crc32(body)}).encode() + b"\n" + body + b"\n"


def _stored(fields: dict[str, object]) -> StoredFile:
    stored = StoredFile(**fields)  # type: ignore[arg-type]  # Wrong fields are a TypeError, which callers expect.
    path = PurePosixPath(stored.path)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{stored.path} is outside the data folder")
    return stored


def read_manifest(backup: Path) -> Manifest:
    """Raises FileNotFoundError if there is no backup, or it was never completed."""
    data = (backup / MANIFEST).read_bytes()
    try:
        head, _, body = data.partition(b"\n")
        if json.loads(head)["crc"] != zlib.crc32(body.rstrip(b"\n")):
            raise BackupFault(f"{backup / MANIFEST} is damaged")
        fields = json.loads(body)
        if fields.pop("version") != VERSION:
            raise BackupFault(f"{backup / MANIFEST} was written by a newer version of Millpond")
        return Manifest(**{**fields, "files": tuple(map(_stored, fields["files"]))})
    except (ValueError, KeyError, TypeError) as fault:
        raise BackupFault(f"{backup / MANIFEST} cannot be read: {fault}") from fault


def _partial(backup: Path) -> Iterator[StoredFile]:
    try:
        lines = (backup / PARTIAL).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        # The last line may be torn.
        with contextlib.suppress(ValueError, TypeError):
            yield _stored(json.loads(line))
