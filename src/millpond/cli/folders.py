"""The folders that hold data: their names, and what is said of one that somebody has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millpond.cli.errors import Failed, cause

if TYPE_CHECKING:
    from millpond.broker.data_folder.identity import Identity

CLUSTER_FOLDER: Final = "millpond-cluster"
"""Where the folders of a cluster's nodes are, unless somebody names another."""


def node_folder(folder: str, node_id: int) -> str:
    return str(Path(folder) / f"node-{node_id}")


def in_use(folder: str) -> Failed:
    return Failed(
        f"Another process uses the data folder {folder}: stop it, or choose another folder with --data DIR."
    )


def unusable(folder: str | Path, error: OSError) -> Failed:
    return Failed(f"The data folder {folder} cannot be used ({cause(error)}): choose another with --data DIR.")


def missing_folders(folder: str) -> list[Path]:
    """The folders that a start is going to make, the innermost first."""
    whole = Path(folder).absolute()
    return [each for each in (whole, *whole.parents) if not os.path.lexists(each)]


def remove_folders(made: list[Path]) -> None:
    """A start that failed leaves nothing behind; what somebody else has put there meanwhile stays."""
    from shutil import rmtree

    with contextlib.suppress(OSError):
        for at, each in enumerate(made):
            if at == 0:
                rmtree(each)
            else:
                each.rmdir()


def identity_of(folder: str) -> Identity | None:
    """Whose folder it is; None for a new one."""
    from millpond.broker.data_folder.identity import CannotStart, read_identity
    from millpond.node.disk import RealDisk

    try:
        return read_identity(RealDisk(), folder)
    except CannotStart as fault:
        raise Failed(f"{fault}.") from None
    except OSError:
        # Whoever starts the node says why it cannot be read.
        return None
