"""Whether a rescue of a data folder was begun and has not ended: every start asks, and needs no more of a rescue."""

from __future__ import annotations

from typing import Final

from millpond.base.ports import Disk

ORDER_FILE: Final = "rescue.order"
"""In a folder: a rescue was begun and has not ended."""


def is_begun(disk: Disk, folder: str) -> bool:
    return disk.exists(f"{folder}/{ORDER_FILE}")
