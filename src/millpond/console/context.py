"""The context that every handler of the console gets."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request

from millpond.admin.library import PlainLibrary
from millpond.console.cluster_pool import ClusterPool
from millpond.console.guard import Rules
from millpond.console.jobs import Jobs
from millpond.console.move_plans import MovePlans
from millpond.console.simulators import Simulators
from millpond.console.streams import Streams

KEY_SEARCHES_MAX: Final = 2
"""Limit of concurrent searches for hot keys."""


@dataclass(slots=True)
class ConsoleContext:
    bootstrap: str
    pool: ClusterPool
    library: PlainLibrary
    """For requests that need librdkafka."""
    pipelines: Path
    """The folder with the state of pipelines."""
    rules: Rules = field(default_factory=Rules)
    jobs: Jobs = field(default_factory=Jobs)
    move_plans: MovePlans = field(default_factory=MovePlans)
    streams: Streams = field(default_factory=Streams)
    key_searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(KEY_SEARCHES_MAX))
    """Searches for hot keys; each holds the keys that it has read."""
    simulators: Simulators = field(default_factory=Simulators)
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests, by rule."""


def context_of(request: Request) -> ConsoleContext:
    context = request.app.state.context
    assert isinstance(context, ConsoleContext)
    return context
