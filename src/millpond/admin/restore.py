"""Restore a data folder from a backup, or verify the backup.

Clients that read from the node after the backup was taken have seen offsets, leader epochs and producer ids that the
restored node does not know and would reuse for other records. If the backup has all nodes of its cluster (a single
node, or the cores of one machine), they continue a thousand epochs and a million ids ahead, by a rescue order
(docs/decisions/0014). For a cluster of several nodes `millpond cluster rescue --restored` writes that order.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from millpond.admin.backup import (
    PARTIAL,
    STORED,
    BackupFault,
    Manifest,
    Progress,
    StoredFile,
    only_one,
    pieces_of,
    read_manifest,
    write_checked,
)
from millpond.broker.data_folder.identity import IDENTITY_FILE, read_identity
from millpond.broker.data_folder.rescue_marker import is_begun
from millpond.broker.data_folder.restored import RESTORE_FILE, mark_restored
from millpond.broker.rescue.order import Order, begin, carry_out, decode_order, order_of
from millpond.broker.rescue.plan import Wish, choose_source, plan_rescue
from millpond.broker.rescue.survivor import METADATA_FOLDER, CannotRescue, NoMetadata, read_survivor
from millpond.log.names import CORES_FOLDER, LOCK_FILE
from millpond.node.disk import RealDisk
from millpond.node.entropy import SystemEntropy
from millpond.node.private_files import make_private_folder

ORDER_FILE: Final = "restore.order"
"""Marks a folder whose files are all restored, and holds the order by which its nodes continue."""


def verify(backup: Path, on_progress: Progress = lambda _: None) -> tuple[Manifest, list[str]]:
    """Read and check the whole backup; returns its manifest and the problems found."""
    manifest = _manifest_of(backup)
    faults = []
    done = 0
    for stored in manifest.files:
        fault = _fault_of(backup / STORED / stored.name, stored)
        if fault is not None:
            faults.append(f"{stored.path}: {fault}")
        elif stored.damage is not None:
            faults.append(f"{stored.path}: was already damaged when copied ({stored.damage})")
        done += stored.size
        on_progress(done)
    return manifest, faults


def _manifest_of(backup: Path) -> Manifest:
    try:
        return read_manifest(backup)
    except FileNotFoundError:
        if (backup / PARTIAL).exists():
            raise BackupFault(f"the backup in {backup} was interrupted: run it again to continue") from None
        raise BackupFault(f"{backup} holds no backup") from None


def _fault_of(path: Path, stored: StoredFile) -> str | None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != stored.size:
                return "differs in size from what was stored"
            crc = 0
            for piece in pieces_of(file.fileno(), stored.size):
                crc = zlib.crc32(piece, crc)
    except FileNotFoundError:
        return "is missing"
    return None if crc == stored.crc else "differs from what was stored (wrong checksum)"


def restore(backup: Path, folder: Path, on_progress: Progress = lambda _: None) -> Manifest:
    """Restore a backup into a data folder, continuing an interrupted restore.

    Until the end the folder is marked incomplete, and no node starts in it. Raises OSError on disk errors.
    """
    manifest = _manifest_of(backup)
    source = {"backup": str(backup.absolute()), "endedMs": manifest.ended_ms}
    note = folder / RESTORE_FILE
    if folder.exists() and any(each.name != LOCK_FILE for each in folder.iterdir()):
        if not note.exists():
            raise BackupFault(f"{folder} is not empty: restore into a new folder, or empty this one")
        if _read_note(note) != source:
            raise BackupFault(f"another backup was being restored into {folder}: empty it first")
    make_private_folder(folder)
    with only_one(folder, f"another restore into {folder} is under way: wait until it ends"):
        if not (folder / ORDER_FILE).exists():
            _put_all_back(backup, folder, manifest, source, on_progress)
        _go_on_ahead(folder, manifest)
        note.unlink()
        # After the note is gone: while the note exists, this file says that all files are restored.
        (folder / ORDER_FILE).unlink(missing_ok=True)
        RealDisk().sync_folder(str(folder))
    return manifest


def _put_all_back(
    backup: Path, folder: Path, manifest: Manifest, source: Mapping[str, object], on_progress: Progress
) -> None:
    disk = RealDisk()
    needed = sum(each.size for each in manifest.files if not _has(folder / each.path, each))
    free = disk.free_bytes(str(folder))
    if needed > free:
        raise BackupFault(f"{folder} has {free:,} bytes free, but {needed:,} are needed")
    disk.replace(str(folder / RESTORE_FILE), json.dumps(source).encode())
    done = 0
    for stored in manifest.files:
        path = folder / stored.path
        if not _has(path, stored):
            make_private_folder(path.parent)
            _put_back(backup / STORED / stored.name, path, stored)
        done += stored.size
        on_progress(done)
    for each, _, _ in os.walk(folder):
        disk.sync_folder(each)


def _go_on_ahead(folder: Path, manifest: Manifest) -> None:
    """Skip epochs and ids that clients may have seen since the backup, so that none is reused."""
    disk = RealDisk()
    roots = [str(folder / root).rstrip("/") for root in manifest.roots]
    kept = folder / ORDER_FILE
    try:
        if kept.exists():
            order: Order | None = decode_order(kept.read_bytes())
        else:
            order = _order(roots, manifest.ended_ms)
            if order is not None:
                disk.replace(str(kept), order.encode())
        if order is None:
            for root in roots:
                if disk.exists(f"{root}/{METADATA_FOLDER}"):
                    mark_restored(disk, root, SystemEntropy().uuid())
            return
        for root in roots:
            identity = read_identity(disk, root)
            if not is_begun(disk, root) and identity is not None and identity.rescues < order.rescues:
                begin(disk, read_survivor(disk, root), order)
            if is_begun(disk, root):
                carry_out(disk, root, order)
    except CannotRescue as fault:
        raise BackupFault(f"the restored data cannot be used: {fault}") from fault


def _order(roots: Sequence[str], ended_ms: int) -> Order | None:
    """The rescue order for all nodes of the cluster; None if some nodes are not in the backup."""
    survivors = []
    for root in roots:
        # The backed-up node may not have received any metadata yet.
        with contextlib.suppress(NoMetadata):
            survivors.append(read_survivor(RealDisk(), root))
    if not survivors:
        return None
    source = choose_source(survivors)
    if source.image.brokers.keys() - {each.node_id for each in survivors}:
        return None
    when = datetime.fromtimestamp(ended_ms / 1000, UTC).isoformat(timespec="milliseconds")
    plan = plan_rescue(survivors, source, f"restored from the backup of {when}", wish=Wish(is_restored=True))
    return order_of(plan, ended_ms, names_voters=source.names_voters)


def other_nodes(folder: Path) -> tuple[int, ...]:
    """The other nodes of the restored node's cluster; empty if it was the only one."""
    try:
        survivor = read_survivor(RealDisk(), str(folder))
    except CannotRescue:
        return ()
    roots = len(list((folder / CORES_FOLDER).glob(f"*/{IDENTITY_FILE}")))
    others = sorted(survivor.image.brokers.keys() - {survivor.node_id})
    return () if roots and len(others) <= roots else tuple(others)


def _put_back(source: Path, path: Path, stored: StoredFile) -> None:
    try:
        with source.open("rb") as file:
            write_checked(path, pieces_of(file.fileno(), stored.size), stored)
    except FileNotFoundError as error:
        raise BackupFault(
            f"{stored.path} in the backup is damaged or missing ({error.strerror or error}): take another backup, or "
            "see `millpond restore --verify`"
        ) from error


def _has(path: Path, stored: StoredFile) -> bool:
    """Whether an interrupted restore has finished this file: it is renamed into place last."""
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
