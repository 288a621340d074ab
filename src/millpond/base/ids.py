"""Typed integers and names for values that cross package boundaries."""

from __future__ import annotations

import re
from typing import NewType
from uuid import UUID

from millpond.base.named_tuple import NamedTuple

Offset = NewType("Offset", int)
"""The number of a record in its partition."""

NodeId = NewType("NodeId", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

NO_PRODUCER_ID = ProducerId(-1)
NO_TOPIC_ID = UUID(int=0)

TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in a replica's log."""

    epoch: int
    end_offset: int


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    @property
    def folder(self) -> str:
        """The name of the partition's folder on disk."""
        return f"{self.topic}-{self.partition}"


def topic_name_fault(name: str) -> str | None:
    """Why `name` is not a valid topic name, for the user who chose it; None if it is valid."""
    if not name:
        return "a topic name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one has {len(name)}"
    if not _TOPIC_NAME.fullmatch(name):
        return f"topic name {name!r} may only have ASCII letters, digits, '.', '_' and '-'"
    return None
