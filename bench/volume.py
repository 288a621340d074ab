"""Many bytes in a topic, made by full batches, and out of memory again."""

from __future__ import annotations

import contextlib
import os

from bench import raw
from bench.node import Node

IN_FLIGHT = 5


def fill(node: Node, topic: str, batches: int, value_bytes: int) -> int:
    """Write so many full batches; how many messages that is."""
    node.create_topic(topic)
    records, count = raw.full_batch(value_bytes)
    frame = raw.produce_frame(topic, 0, records, raw.ACKS_LEADER)
    with node.connect() as writer:
        for place in range(batches):
            writer.send(frame)
            if place >= IN_FLIGHT:
                raw.check_produced(writer.receive())
        for _ in range(min(batches, IN_FLIGHT)):
            raw.check_produced(writer.receive())
    return count * batches


def forget_pages(folder: str) -> int:
    """Have the system forget what it holds of all files below a folder: whoever reads them waits for the disk.

    How many bytes they have.
    """
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(os.path.join(where, name), os.O_RDONLY)
                try:
                    # What has not been written yet cannot be forgotten.
                    os.fdatasync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    total += os.fstat(descriptor).st_size
                finally:
                    os.close(descriptor)
    return total


def folder_bytes(folder: str) -> int:
    """What its files take of the disk."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            # Some are removed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total
