"""A data folder whose node asked who comes stays one: whoever loses the settings must not open it to everybody."""

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
    """Misconfigured where it asked who comes, and these settings ask nobody. Before anything is opened."""
    folder = settings[DATA_FOLDER]
    path = Path(folder) / SECURE_MARK
    if path.exists() and not asks_for_rights(settings):
        raise Misconfigured(
            f"the node of {folder} has asked so far who comes, and these settings ask nobody: start it with those "
            f"that it had, or remove {path} to open it to everybody"
        )


def leave_mark(settings: Settings) -> None:
    """Once the node runs with settings that ask who comes."""
    path = Path(settings[DATA_FOLDER]) / SECURE_MARK
    if asks_for_rights(settings) and not path.exists():
        write_private(path, TEXT)
