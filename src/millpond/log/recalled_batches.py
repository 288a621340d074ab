"""Recalling the batches before a producer snapshot.

A snapshot holds only the last batch of each producer, and a client may retry its last five. So loading a snapshot
includes reading the end of the log before it, as far as that is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millpond.log.producers import ProducerStates
from millpond.log.scan import headers
from millpond.log.segment import Segment
from millpond.wire.batch import BatchHeader

RECALLED_ENTRIES = 64
"""How many offset index entries to go back: that many large batches, or 256 KiB of small ones."""
RECALLED_BYTES = 1 << 18
RECALLED_SEGMENTS = 16
"""Small segments are read up to this number or this many bytes; at least two are read."""


def recall_batches(producers: ProducerStates, segments: Sequence[Segment], upto: int, now_ms: int) -> None:
    """Complete a snapshot that was taken at offset `upto`."""
    if producers.retrying(now_ms):
        producers.recall(_last_headers(segments, upto), now_ms)


def _last_headers(segments: Sequence[Segment], upto: int) -> Iterator[BatchHeader]:
    chosen: list[Segment] = []
    size = 0
    for segment in reversed(segments):
        if segment.base_offset < upto and segment.size:
            # Two segments, because the last one may have just begun.
            if len(chosen) >= 2 and (size >= RECALLED_BYTES or len(chosen) >= RECALLED_SEGMENTS):
                break
            chosen.append(segment)
            size += segment.size
    for segment in reversed(chosen):
        for _, header in headers(segment.file, segment.position_back(RECALLED_ENTRIES), segment.size):
            yield header
