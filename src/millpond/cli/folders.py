"""Data folders: their names, and errors about them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millpond.cli.errors import Failed, cause

if TYPE_CHECKING:
    from millpond.broker.data_folder.identity import Identity

CLUSTER_FOLDER: Final = "millpond-cluster"
"""The default folder of a cluster on one machine."""


@contextlib.contextmanager
def locked(folder: str, inner: str = "") -> Iterator[None]:
    """Creates and locks the folder, so that no node starts in it. With `inner`, a folder in it is locked instead."""
    from millpond.log.names import LOCK_FILE
    from millpond.node.disk import RealDisk
    from millpond.node.private_files import make_private_folder

    path, disk = Path(folder), RealDisk()
    try:
        make_private_folder(path)
        lock = disk.lock(str(path / LOCK_FILE))
        if inner:
            # Before anything else is created: the lock of the folder's own node must be free.
            lock.release()
            make_private_folder(path / inner)
            lock = disk.lock(str(path / inner / LOCK_FILE))
    except BlockingIOError:
        raise in_use(folder) from None
    except OSError as error:
        raise unusable(folder, error) from None
    try:
        yield
    finally:
        lock.release()


def node_folder(folder: str, node_id: int) -> str:
    return str(Path(folder) / f"node-{node_id}")


def in_use(folder: str) -> Failed:
    return Failed(
        f"Another process uses the data folder {folder}: stop it, or choose another folder with --data DIR."
    )


def unusable(folder: str | Path, error: OSError) -> Failed:
    return Failed(f"The data folder {folder} cannot be used ({cause(error)}): choose another with --data DIR.")


def missing_folders(folder: str) -> list[Path]:
    """The folders that starting will create, the innermost first."""
    whole = Path(folder).absolute()
    return [each for each in (whole, *whole.parents) if not os.path.lexists(each)]


def remove_folders(made: list[Path]) -> None:
    """Removes them after a failed start, except those with files of others."""
    from shutil import rmtree

    with contextlib.suppress(OSError):
        for at, each in enumerate(made):
            if at == 0:
                rmtree(each)
            else:
                each.rmdir()


def identity_of(folder: str) -> Identity | None:
    """The identity in the folder; None for a new one."""
    from millpond.broker.data_folder.identity import CannotStart, read_identity
    from millpond.node.disk import RealDisk

    try:
        return read_identity(RealDisk(), folder)
    except CannotStart as fault:
        raise Failed(f"{fault}.") from None
    except OSError:
        # The start of the node reports why it cannot be read.
        return None
