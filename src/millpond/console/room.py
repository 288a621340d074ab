"""The context that every handler of the console gets."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request

from millpond.admin.library import PlainLibrary
from millpond.console.desk import Desk
from millpond.console.guard import Rules
from millpond.console.jobs import Jobs
from millpond.console.move_plans import MovePlans
from millpond.console.simulators import Simulators
from millpond.console.streams import Streams

KEY_LOOKS_MAX: Final = 2
"""Limit of concurrent searches for hot keys."""


@dataclass(slots=True)
class Room:
    bootstrap: str
    desk: Desk
    library: PlainLibrary
    """For requests that need librdkafka."""
    pipelines: Path
    """The folder with the state of pipelines."""
    rules: Rules = field(default_factory=Rules)
    jobs: Jobs = field(default_factory=Jobs)
    move_plans: MovePlans = field(default_factory=MovePlans)
    streams: Streams = field(default_factory=Streams)
    key_looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(KEY_LOOKS_MAX))
    """Searches for hot keys; each holds the keys that it has read."""
    simulators: Simulators = field(default_factory=Simulators)
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests, by rule."""


def room_of(request: Request) -> Room:
    room = request.app.state.room
    assert isinstance(room, Room)
    return room
