"""What can go wrong when a topic is read or written as a table."""

from __future__ import annotations

from millpond.base.ids import TopicPartition
from millpond.remote.errors import ClientError


class RecordsGone(ClientError):
    """Records were deleted while they were read."""

    @classmethod
    def trimmed(cls, partition: TopicPartition, requested: int, earliest: int) -> RecordsGone:
        return cls(
            f"{partition}: the records from offset {requested} on were deleted while they were read, the log now "
            f"starts at {earliest}: read again, or raise retention.ms of {partition.topic}"
        )

    @classmethod
    def deleted(cls, topic: str) -> RecordsGone:
        return cls(f"topic {topic!r} was deleted while it was read: what came before is incomplete")

    @classmethod
    def recreated(cls, topic: str) -> RecordsGone:
        return cls(f"topic {topic!r} was deleted and created again while it was read: read it again")


class BadValue(ClientError):
    """A record whose value does not have the expected form."""
