"""Detects an unfinished rescue of a data folder. Every start checks this, without importing the rescue itself."""

from __future__ import annotations

from typing import Final

from millpond.base.ports import Disk

ORDER_FILE: Final = "rescue.order"
"""Exists in a folder while a rescue is unfinished."""


def is_begun(disk: Disk, folder: str) -> bool:
    return disk.exists(f"{folder}/{ORDER_FILE}")
