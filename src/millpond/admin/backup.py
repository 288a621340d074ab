"""A copy of a node's data folder while the node runs: checked, incremental, and told whole from half.

Only what cannot be rebuilt is kept: batches, snapshots of the metadata, whose folder it is and where each log begins.
Indexes and the state of producers come back when the node starts, from the batches. Every stored file is named by its
content, and the manifest, which says what stands for what, is replaced last: a backup that is interrupted leaves the
one before as it was, and the next one goes on with what is there.

Groups and transactions are copied before all other topics: committed offsets then point to records that are there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from millpond.broker.lives.identity import IDENTITY_FILE, CannotStart, read_identity
from millpond.broker.lives.restored import RESTORE_FILE
from millpond.broker.quorum.state import STATE_FILE
from millpond.broker.quorum.wire import METADATA_PARTITION
from millpond.broker.replication.high_watermarks import FILE as HIGH_WATERMARKS_FILE
from millpond.log.names import LOG, METADATA_FILE, START_FILE, read_offset_name, read_partition_folder
from millpond.log.scan import sound_end
from millpond.metadata.image import COORDINATOR_TOPICS
from millpond.node.disk import RealDisk

MANIFEST: Final = "manifest.json"
PARTIAL: Final = "manifest.partial"
"""What an interrupted backup has stored already, a line a file."""
STORED: Final = "files"
VERSION: Final = 1

TOP_FILES: Final = (START_FILE, HIGH_WATERMARKS_FILE, IDENTITY_FILE)
CHUNK: Final = 1 << 20
WRITING_SECONDS: Final = 0.05
TRIES: Final = 10
"""So often a partition is listed anew when its files have changed under our hands."""

Progress = Callable[[int], None]
"""Hears how many bytes are done."""


class BackupFault(Exception):
    """The text says what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One file of the data folder, as it is kept."""

    path: str
    """In the data folder."""
    size: int
    crc: int
    inode: int = 0
    changed_ns: int = 0
    """Of the file that was copied: the same ones, and it need not be read again."""
    damage: str | None = None
    """What is wrong with it, as it was found."""

    @property
    def name(self) -> str:
        """Where it is, among the stored files."""
        return f"{self.path}.{self.size:x}-{self.crc:08x}"


@dataclass(frozen=True, slots=True)
class Manifest:
    cluster_id: str | None
    node_id: int
    rescues: int
    began_ms: int
    ended_ms: int
    files: tuple[Stored, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)

    @property
    def damaged(self) -> list[Stored]:
        return [each for each in self.files if each.damage is not None]

    @property
    def partitions(self) -> int:
        folders = {each.path.partition("/")[0] for each in self.files if "/" in each.path}
        return len(folders - {METADATA_PARTITION.folder})


@dataclass(slots=True)
class Result:
    manifest: Manifest
    copied_files: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0
    """What an earlier backup had already."""


# Backing up.


def back_up(source: Path, target: Path, now_ms: Callable[[], int], on_progress: Progress = lambda _: None) -> Result:
    """Bring the backup in `target` to the present state of the data folder `source`, whose node may run.

    OSError where the disk gives up; what was stored stays, and the next one goes on with it.
    """
    return _Backup(source, target, on_progress).run(now_ms)


@dataclass(slots=True)
class _Backup:
    source: Path
    target: Path
    on_progress: Progress
    disk: RealDisk = field(default_factory=RealDisk)
    known: dict[str, Stored] = field(default_factory=dict)
    taken: dict[str, Stored] = field(default_factory=dict)
    copied_files: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0

    def run(self, now_ms: Callable[[], int]) -> Result:
        began_ms = now_ms()
        try:
            identity = read_identity(self.disk, str(self.source))
        except CannotStart as fault:
            raise BackupFault(str(fault)) from fault
        if identity is None:
            raise BackupFault(f"{self.source} is not the data folder of a node")
        if (self.source / RESTORE_FILE).exists():
            raise BackupFault(f"{self.source} is being restored: end that first")
        self._open_target(identity.cluster_id, identity.node_id)
        # First, so that it is never ahead of the logs.
        for name in TOP_FILES:
            with contextlib.suppress(FileNotFoundError):
                self._take_small(name)
        for folder in self._folders():
            self._take_folder(folder)
        manifest = Manifest(
            identity.cluster_id,
            identity.node_id,
            identity.rescues,
            began_ms,
            now_ms(),
            tuple(self.taken[path] for path in sorted(self.taken)),
        )
        self._end(manifest)
        return Result(manifest, self.copied_files, self.copied_bytes, self.kept_bytes)

    def _open_target(self, cluster_id: str | None, node_id: int) -> None:
        files = self.target / STORED
        if self.target.exists() and not files.exists() and any(self.target.iterdir()):
            raise BackupFault(f"{self.target} holds other things than a backup: name an empty or a new folder")
        with contextlib.suppress(FileNotFoundError):
            before = read_manifest(self.target)
            if (before.cluster_id, before.node_id) != (cluster_id, node_id):
                raise BackupFault(
                    f"{self.target} holds the backup of node {before.node_id} of cluster {before.cluster_id}: name "
                    "another folder"
                )
            self.known = {each.path: each for each in before.files}
        files.mkdir(parents=True, exist_ok=True)
        for stored in _partial(self.target):
            self.known[stored.path] = stored

    def _folders(self) -> Iterator[str]:
        """Coordinators, then the metadata, then all others."""
        names = [name for name in sorted(os.listdir(self.source)) if read_partition_folder(name) is not None]

        def rank(name: str) -> int:
            partition = read_partition_folder(name)
            assert partition is not None
            return 0 if partition.topic in COORDINATOR_TOPICS else 2 if partition != METADATA_PARTITION else 1

        yield from sorted(names, key=rank)

    def _take_folder(self, folder: str) -> None:
        for _ in range(TRIES):
            if not (self.source / folder).exists():
                # Its topic was deleted meanwhile.
                self.taken = {path: each for path, each in self.taken.items() if not path.startswith(f"{folder}/")}
                return
            try:
                names = sorted(os.listdir(self.source / folder))
                self._take_files(folder, names)
                if _logs(os.listdir(self.source / folder))[:1] == _logs(names)[:1]:
                    return
            except FileNotFoundError:
                # Segments go by retention, come by compaction: see what there is now.
                pass
            self.taken = {path: each for path, each in self.taken.items() if not path.startswith(f"{folder}/")}
        raise BackupFault(f"{self.source / folder} changes faster than it can be copied: try again")

    def _take_files(self, folder: str, names: Iterable[str]) -> None:
        logs = _logs(names)
        if METADATA_FILE in names:
            self._take_small(f"{folder}/{METADATA_FILE}")
        if folder == METADATA_PARTITION.folder:
            # The snapshots first: the log goes on from the oldest of them.
            for name in names:
                if name.endswith(".checkpoint") and name[0].isdigit():
                    self._take_small(f"{folder}/{name}")
            if STATE_FILE in names:
                self._take_small(f"{folder}/{STATE_FILE}")
        for name in logs:
            self._take_log(f"{folder}/{name}", is_last=name == logs[-1])

    def _take_small(self, path: str) -> None:
        data = (self.source / path).read_bytes()
        stored = Stored(path, len(data), zlib.crc32(data))
        self._store(stored, iter((data,)))

    def _take_log(self, path: str, *, is_last: bool) -> None:
        file = self.source / path
        before = file.stat()
        known = self.known.get(path)
        is_same = known is not None and (known.inode, known.changed_ns) == (before.st_ino, before.st_mtime_ns)
        if known is not None and is_same and known.size == before.st_size and self._is_stored(known):
            self.kept_bytes += known.size
            self._note(known)
            return
        end, damage = sound_end(self.disk, str(file))
        tries = TRIES
        while damage is not None and is_last and tries:
            # The node may be just writing.
            time.sleep(WRITING_SECONDS)
            before, tries = file.stat(), tries - 1
            end, damage = sound_end(self.disk, str(file))
        size = end if is_last else before.st_size
        with file.open("rb") as opened:
            crc = 0
            for piece in _pieces(opened.fileno(), size):
                crc = zlib.crc32(piece, crc)
            if os.fstat(opened.fileno()).st_size < size:
                # Cut back by its leader: what was read may not belong together.
                raise FileNotFoundError(errno.ENOENT, "cut back", str(file))
            # What has grown since is another file for the next backup.
            changed_ns = before.st_mtime_ns if size == before.st_size else 0
            stored = Stored(path, size, crc, before.st_ino, changed_ns, None if damage is None else f"{damage}"[:200])
            self._store(stored, _pieces(opened.fileno(), size))

    def _is_stored(self, stored: Stored) -> bool:
        try:
            return (self.target / STORED / stored.name).stat().st_size == stored.size
        except FileNotFoundError:
            return False

    def _store(self, stored: Stored, pieces: Iterator[bytes]) -> None:
        if not self._is_stored(stored):
            path = self.target / STORED / stored.name
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, pieces, stored)
            self.copied_files += 1
            self.copied_bytes += stored.size
        else:
            self.kept_bytes += stored.size
        self._note(stored)

    def _note(self, stored: Stored) -> None:
        self.taken[stored.path] = stored
        with (self.target / PARTIAL).open("a", encoding="utf-8") as partial:
            partial.write(json.dumps(asdict(stored)) + "\n")
        self.on_progress(self.copied_bytes + self.kept_bytes)

    def _end(self, manifest: Manifest) -> None:
        for folder, _, _ in os.walk(self.target / STORED):
            self.disk.sync_folder(folder)
        self.disk.replace(str(self.target / MANIFEST), _encode(manifest))
        (self.target / PARTIAL).unlink(missing_ok=True)
        # What only the backup before needed goes last.
        wanted = {each.name for each in manifest.files}
        for folder, _, names in os.walk(self.target / STORED):
            for name in names:
                path = Path(folder) / name
                if str(path.relative_to(self.target / STORED)) not in wanted:
                    path.unlink()


def _logs(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if (entry := read_offset_name(name)) is not None and entry[1] == LOG)


def _pieces(descriptor: int, size: int) -> Iterator[bytes]:
    position = 0
    while position < size:
        piece = os.pread(descriptor, min(CHUNK, size - position), position)
        if not piece:
            raise FileNotFoundError(errno.ENOENT, "cut back")
        yield piece
        position += len(piece)


def _write(path: Path, pieces: Iterator[bytes], wanted: Stored) -> None:
    """There whole, checked and safe, or not at all."""
    part = path.with_name(path.name + ".part")
    crc = size = 0
    with part.open("wb") as out:
        for piece in pieces:
            out.write(piece)
            crc, size = zlib.crc32(piece, crc), size + len(piece)
        out.flush()
        os.fsync(out.fileno())
    if (crc, size) != (wanted.crc, wanted.size):
        part.unlink()
        # A segment that was cut back and written again in between; for a stored file, damage.
        raise FileNotFoundError(errno.ENOENT, "changed while it was copied", str(path))
    part.rename(path)


# The manifest.


def _encode(manifest: Manifest) -> bytes:
    fields = {"version": VERSION, **asdict(manifest)}
    body = json.dumps(fields, indent=1).encode()
    return json.dumps({"crc": zlib.crc32(body)}).encode() + b"\n" + body + b"\n"


def read_manifest(backup: Path) -> Manifest:
    """FileNotFoundError where there is none: no backup, or one that has never ended."""
    data = (backup / MANIFEST).read_bytes()
    try:
        head, _, body = data.partition(b"\n")
        if json.loads(head)["crc"] != zlib.crc32(body.rstrip(b"\n")):
            raise BackupFault(f"{backup / MANIFEST} is damaged")
        fields = json.loads(body)
        if fields.pop("version") != VERSION:
            raise BackupFault(f"{backup / MANIFEST} is of a later version than this program knows")
        return Manifest(**{**fields, "files": tuple(Stored(**each) for each in fields["files"])})
    except (ValueError, KeyError, TypeError) as fault:
        raise BackupFault(f"{backup / MANIFEST} cannot be read: {fault}") from fault


def _partial(backup: Path) -> Iterator[Stored]:
    try:
        lines = (backup / PARTIAL).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        # The last line may be torn.
        with contextlib.suppress(ValueError, TypeError):
            yield Stored(**json.loads(line))


# Restoring.


def verify(backup: Path, on_progress: Progress = lambda _: None) -> tuple[Manifest, list[str]]:
    """Read all of it again; what is wrong, if anything."""
    manifest = _manifest_of(backup)
    faults = []
    done = 0
    for stored in manifest.files:
        fault = _fault_of(backup / STORED / stored.name, stored)
        if fault is not None:
            faults.append(f"{stored.path}: {fault}")
        elif stored.damage is not None:
            faults.append(f"{stored.path}: was damaged already when it was copied ({stored.damage})")
        done += stored.size
        on_progress(done)
    return manifest, faults


def _manifest_of(backup: Path) -> Manifest:
    try:
        return read_manifest(backup)
    except FileNotFoundError:
        if (backup / PARTIAL).exists():
            raise BackupFault(f"the backup in {backup} was interrupted: run it again, it goes on") from None
        raise BackupFault(f"{backup} holds no backup") from None


def _fault_of(path: Path, stored: Stored) -> str | None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != stored.size:
                return "has another size than when it was stored"
            crc = 0
            for piece in _pieces(file.fileno(), stored.size):
                crc = zlib.crc32(piece, crc)
    except FileNotFoundError:
        return "is missing"
    return None if crc == stored.crc else "is not what was stored (its checksum differs)"


def restore(backup: Path, folder: Path, on_progress: Progress = lambda _: None) -> Manifest:
    """Make a data folder of a backup. An interrupted one is gone on with.

    The folder says until the end that it is not whole, and no node starts in it. OSError where the disk gives up.
    """
    manifest = _manifest_of(backup)
    disk = RealDisk()
    source = {"backup": str(backup.absolute()), "endedMs": manifest.ended_ms}
    note = folder / RESTORE_FILE
    if folder.exists() and any(folder.iterdir()):
        if not note.exists():
            raise BackupFault(f"{folder} is not empty: restore into a new folder, or empty this one")
        if _read_note(note) != source:
            raise BackupFault(f"another backup was being restored into {folder}: empty it first")
    needed = sum(each.size for each in manifest.files if not _has(folder / each.path, each))
    folder.mkdir(parents=True, exist_ok=True)
    free = disk.free_bytes(str(folder))
    if needed > free:
        raise BackupFault(f"{folder} has room for {free:,} bytes, and {needed:,} are needed")
    disk.replace(str(note), json.dumps(source).encode())
    done = 0
    for stored in manifest.files:
        path = folder / stored.path
        if not _has(path, stored):
            path.parent.mkdir(parents=True, exist_ok=True)
            _put_back(backup / STORED / stored.name, path, stored)
        done += stored.size
        on_progress(done)
    for each, _, _ in os.walk(folder):
        disk.sync_folder(each)
    note.unlink()
    disk.sync_folder(str(folder))
    return manifest


def _put_back(source: Path, path: Path, stored: Stored) -> None:
    try:
        with source.open("rb") as file:
            _write(path, _pieces(file.fileno(), stored.size), stored)
    except FileNotFoundError as error:
        raise BackupFault(
            f"{stored.path} in the backup is damaged or missing ({error.strerror or error}): take another backup, or "
            "see `millpond restore --verify`"
        ) from error


def _has(path: Path, stored: Stored) -> bool:
    """Whether an interrupted restore has put it there: its name comes last."""
    try:
        return path.stat().st_size == stored.size
    except FileNotFoundError:
        return False


def _read_note(path: Path) -> Mapping[str, object]:
    try:
        note = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}
