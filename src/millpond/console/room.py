"""What every handler of the console works with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from starlette.requests import Request

from millpond.console.desk import Desk
from millpond.console.jobs import Jobs
from millpond.console.streams import Streams


@dataclass(slots=True)
class Room:
    bootstrap: str
    desk: Desk
    is_read_only: bool = False
    jobs: Jobs = field(default_factory=Jobs)
    streams: Streams = field(default_factory=Streams)
    refused: Counter[str] = field(default_factory=Counter)
    """By the rule that did."""


def room_of(request: Request) -> Room:
    room = request.app.state.room
    assert isinstance(room, Room)
    return room
