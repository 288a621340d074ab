"""The common Fetch requests of consumers, read without building a message: one partition, or an unchanged session.

`short_fetch` returns None for any other request, including malformed ones, and the general path handles those.
It exists only compiled (`_small.pyx`): without the kernel every request takes the general path.
"""

from __future__ import annotations

from typing import Protocol

REPLY_TAIL = b"\0\0\0"
"""What follows the records: no tags for the partition, the topic or the response."""


class ShortFetch(Protocol):
    """A consumer's fetch of one partition by name or id, or of everything in its session."""

    version: int
    correlation_id: int
    client_id: bytes | None
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    key: bytes | None
    """The topic's name, or its id from version 13 on, then the partition in four bytes. None if no partition is
    named: then the fields below mean nothing."""
    leader_epoch: int
    fetch_offset: int
    bytes_max: int
    """The limit for this partition."""

    def reply(
        self,
        topic: bytes,
        partition: int,
        high_watermark: int,
        stable_offset: int,
        start_offset: int,
        size: int,
    ) -> bytes:
        """The response frame up to its `size` bytes of records. `REPLY_TAIL` follows them."""
        ...

    def reply_nothing(self) -> bytes:
        """The whole response frame if there is nothing new."""
        ...


def short_fetch(frame: memoryview) -> ShortFetch | None:
    """A whole Fetch request as above; None for any other request."""
    return None
