"""The event log of a run: one line per event. Equal for equal recordings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from millpond.base.named_tuple import NamedTuple

LINES_MAX: Final = 4_000
"""Later lines are dropped."""


class Line(NamedTuple):
    at_ms: int
    who: str
    text: str


@dataclass(slots=True)
class Story:
    origin_ms: int = 0
    """When the cluster was ready; times of lines count from here."""
    lines: list[Line] = field(default_factory=list)

    def tell(self, now_ms: int, who: str, text: str) -> None:
        if len(self.lines) < LINES_MAX:
            self.lines.append(Line(now_ms - self.origin_ms, who, text))

    def from_line(self, number: int) -> list[Line]:
        return self.lines[number:]
