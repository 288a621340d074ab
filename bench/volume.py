"""Filling topics with full batches, and dropping files from the page cache."""

from __future__ import annotations

import contextlib
import os

from bench import raw
from bench.node import Node

IN_FLIGHT = 5


def fill(node: Node, topic: str, batches: int, value_bytes: int, partition: int = 0) -> int:
    """Create a topic and write this many full batches to one partition; the number of messages."""
    node.create_topic(topic)
    records, count = raw.full_batch(value_bytes)
    frame = raw.produce_frame(topic, partition, records, raw.ACKS_LEADER)
    with node.connect() as writer:
        for number in range(batches):
            writer.send(frame)
            if number >= IN_FLIGHT:
                raw.check_produced(writer.receive())
        for _ in range(min(batches, IN_FLIGHT)):
            raw.check_produced(writer.receive())
    return count * batches


def forget_pages(folder: str) -> int:
    """Drop all files below a folder from the page cache, so that reads wait for the disk; their size in bytes."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(os.path.join(where, name), os.O_RDONLY)
                try:
                    # Dirty pages cannot be dropped.
                    os.fdatasync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    total += os.fstat(descriptor).st_size
                finally:
                    os.close(descriptor)
    return total


def folder_bytes(folder: str) -> int:
    """The disk space of its files."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            # Files may be removed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total
