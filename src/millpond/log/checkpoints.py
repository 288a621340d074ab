"""Kafka's text checkpoints: a version line, a count line, then one line of words per entry.

They are replaced atomically, so a reader sees the old text or the new one; anything else is damage.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.base.ports import Disk

VERSION = 0


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be parsed. Its content must be recovered another way."""


def encode_lines(rows: Sequence[Sequence[object]]) -> bytes:
    lines = [str(VERSION), str(len(rows)), *(" ".join(map(str, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def decode_lines(data: bytes, width: int) -> list[list[str]]:
    """The entries as lists of `width` words (topic names have no spaces)."""
    try:
        lines = data.decode().splitlines()
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError):
        raise DamagedCheckpoint("no version and count") from None
    rows = [line.split() for line in lines[2:] if line]
    if version != VERSION or len(rows) != count or any(len(row) != width for row in rows):
        raise DamagedCheckpoint(f"version {version}, {count} entries declared, {len(rows)} found")
    return rows


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """An offset for each partition; a missing file has none."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return {}
    try:
        rows = decode_lines(data, 3)
        # Partitions of one topic share its interned name.
        return {TopicPartition(sys.intern(topic), int(n)): int(offset) for topic, n, offset in rows}
    except ValueError:
        raise DamagedCheckpoint(f"{path} holds something that is not a number") from None


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_lines([(tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())])


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return encode_lines(list(entries))


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    return list(_epochs(data))


@lru_cache(1024)
def _epochs(data: bytes) -> tuple[tuple[int, int], ...]:
    """Cached, because thousands of partitions have the same epochs."""
    try:
        return tuple((int(epoch), int(start)) for epoch, start in decode_lines(data, 2))
    except ValueError:
        raise DamagedCheckpoint("an epoch or offset that is not a number") from None


def encode_metadata(topic_id: UUID) -> bytes:
    word = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: {VERSION}\ntopic_id: {word}".encode()


@lru_cache(1024)
def decode_metadata(data: bytes) -> UUID:
    try:
        fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
        if int(fields["version"]) != VERSION:
            raise DamagedCheckpoint(f"partition.metadata has version {fields['version']}")
        return UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except (ValueError, KeyError):
        raise DamagedCheckpoint("partition.metadata names no topic id") from None
