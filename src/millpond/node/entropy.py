"""Randomness from the operating system."""

from __future__ import annotations

import secrets
import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemEntropy:
    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)


def boot_id() -> str:
    """The kernel's boot id; if there is none, a random one, which counts as another boot each time."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return str(uuid.uuid4())
