"""A data folder that is being restored from a backup: until that has ended no node may start in it."""

from __future__ import annotations

from typing import Final

RESTORE_FILE: Final = "restore.running"
