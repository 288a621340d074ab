"""What idle group members send, read without building a message: heartbeats, and commits of one offset.

The functions return None for any other request, including malformed ones, and the general path handles those.
They exist only compiled (`_small.pyx`): without the kernel every request takes the general path.
"""

from __future__ import annotations

from typing import Protocol


class _Short(Protocol):
    version: int
    correlation_id: int
    client_id: str
    """Empty if there is none, as coordinators have it."""
    group_id: str
    member_id: str


class ShortHeartbeat(_Short, Protocol):
    """The heartbeat of a dynamic member of a classic group."""

    generation: int

    def reply(self) -> bytes:
        """The whole response frame, without an error."""
        ...


class ShortConsumerHeartbeat(_Short, Protocol):
    """The heartbeat of a member of a consumer group that reports no change."""

    epoch: int

    def reply(self, interval_ms: int) -> bytes:
        """The whole response frame, without an error or an assignment."""
        ...


class ShortCommit(_Short, Protocol):
    """A commit of one partition's offset, by a dynamic member or without one."""

    generation: int
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None

    def reply(self) -> bytes:
        """The whole response frame, without an error."""
        ...


def short_heartbeat(frame: memoryview) -> ShortHeartbeat | None:
    """A whole Heartbeat request as above; None for any other request."""
    return None


def short_consumer_heartbeat(frame: memoryview) -> ShortConsumerHeartbeat | None:
    """A whole ConsumerGroupHeartbeat request as above; None for any other request."""
    return None


def short_commit(frame: memoryview) -> ShortCommit | None:
    """A whole OffsetCommit request as above; None for any other request."""
    return None
