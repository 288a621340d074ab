"""The journal: the log lines that a node writes for its operator."""

from __future__ import annotations

from typing import Protocol


class Journal(Protocol):
    """Writes one event and its facts."""

    def __call__(self, event: str, **facts: object) -> None: ...
