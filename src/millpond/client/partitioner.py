"""Choosing a partition: like Java clients, round robin, or with a custom function."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import Final, TypeAlias
from zlib import crc32

from millpond.wire.partitioner import partition_for_key

Partitioner: TypeAlias = Callable[["bytes | None", int], int]
"""From a key and the number of partitions to a partition."""

SALT_MARK: Final = "#"


def by_key(key: bytes | None, partitions: int) -> int:
    """Java's hash (murmur2); a record without a key goes to a random partition."""
    return random.randrange(partitions) if key is None else partition_for_key(key, partitions)


class RoundRobin:
    """Each record to the next partition, whatever its key: even load, no order."""

    def __init__(self) -> None:
        self._numbers = count()
        self._lock = Lock()

    def __call__(self, key: bytes | None, partitions: int) -> int:
        with self._lock:
            return next(self._numbers) % partitions


def salted(key: str, buckets: int, *, by: str | bytes | None = None) -> str:
    """Spread a hot key over `buckets` keys, so that its records use several partitions.

    Records of one bucket keep their order. Records with the same `by` share a bucket, which keeps, say, the records
    of one order in sequence for a very large customer. Without `by` the bucket is random.
    """
    if buckets < 1:
        raise ValueError("a key is spread over at least one bucket")
    chosen = random.randrange(buckets) if by is None else crc32(by.encode() if isinstance(by, str) else by)
    return f"{key}{SALT_MARK}{chosen % buckets}"


def unsalted(key: str) -> str:
    """The key before `salted`; a key without salt is returned unchanged."""
    head, mark, bucket = key.rpartition(SALT_MARK)
    return head if mark and bucket.isdecimal() else key
