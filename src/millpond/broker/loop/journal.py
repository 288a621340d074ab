"""The journal: where a node reports what an operator should know."""

from __future__ import annotations

from typing import Protocol


class Journal(Protocol):
    """Takes one event and its facts."""

    def __call__(self, event: str, **facts: object) -> None: ...
