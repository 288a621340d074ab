"""One record on its way through a worker."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import Origin
from millpond.client.message import Message
from millpond.client.progress import Progress


@dataclass(slots=True, eq=False)
class Job:
    message: Message
    place: TopicPartition
    """The partition it was read from, maybe one of a retry topic."""
    progress: Progress
    """That of the assignment it was read in; when the partition has another by now, the job is nobody's."""
    origin: Origin
    lane: Hashable | None
    attempts: int
    """Tries so far."""
