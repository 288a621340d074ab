"""A data folder whose node required authentication keeps requiring it: losing the settings must not open it to
everyone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millpond.base.settings import Settings
from millpond.broker.data_folder.identity import Misconfigured
from millpond.broker.security.authorizer import asks_for_rights
from millpond.config.node import DATA_FOLDER
from millpond.log.names import SECURE_MARK
from millpond.node.private_files import write_private

TEXT: Final = b"The node of this folder asks who comes. Without this file it would start where nobody is asked.\n"


def check_mark(settings: Settings) -> None:
    """Misconfigured if the folder requires authentication and these settings do not. Before anything is opened."""
    folder = settings[DATA_FOLDER]
    path = Path(folder) / SECURE_MARK
    if path.exists() and not asks_for_rights(settings):
        raise Misconfigured(
            f"the node of {folder} has required authentication so far, and these settings do not: restore its "
            f"settings, or remove {path} to open it to everyone"
        )


def leave_mark(settings: Settings) -> None:
    """Called once the node runs with settings that require authentication."""
    path = Path(settings[DATA_FOLDER]) / SECURE_MARK
    if asks_for_rights(settings) and not path.exists():
        write_private(path, TEXT)
