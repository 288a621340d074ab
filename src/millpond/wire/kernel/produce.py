"""The most common request by far, read without building a message: Produce of one small batch to one partition.

`short_produce` reads and checks the whole frame. It exists only compiled (`_fast.pyx`): without the kernel it always
returns None. It also returns None for any other request, including malformed ones, which the general path handles.
"""

from __future__ import annotations

from typing import Protocol


class ShortProduce(Protocol):
    """A Produce request with one small, valid batch for one partition, with acks 1 or -1.

    Valid means: the batch is whole and alone, its CRC and counts are right, its codec is allowed in this version, and
    it is not transactional. Whether the topic and its log accept it is not known yet.
    """

    version: int
    correlation_id: int
    client_id: bytes | None
    acks: int
    timeout_ms: int
    key: bytes
    """The topic's name as the frame has it, or from version 13 on the 16 bytes of its id; then the partition in 4
    bytes."""
    records: memoryview
    """The batch, in the frame."""
    size: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int

    def stamp(self, offset: int, leader_epoch: int) -> None:
        """Write the base offset and the leader epoch into the batch."""

    def release(self) -> None:
        """Let go of the frame, whose memory the next one reuses; `records` is gone."""

    def reply(self, offset: int, append_time_ms: int, start_offset: int) -> bytes:
        """The whole response frame, without an error."""
        ...


def short_produce(frame: memoryview) -> ShortProduce | None:
    """A whole Produce request as above; None for any other request."""
    return None
