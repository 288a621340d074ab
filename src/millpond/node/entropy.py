"""Randomness from the operating system."""

from __future__ import annotations

import secrets
import uuid


class SystemEntropy:
    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)
