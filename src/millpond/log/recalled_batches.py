"""Finding the batches before a producer snapshot again.

A snapshot knows only the last batch of each producer, and a client may send its last five again. Starting from a
snapshot therefore means looking at the end of the log before it, as far as that is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millpond.log.producers import ProducerStates
from millpond.log.scan import headers
from millpond.log.segment import Segment
from millpond.wire.batch import BatchHeader

RECALLED_ENTRIES = 64
"""How many entries of the offset index to go back: so many large batches, or 256 KiB of small ones."""
RECALLED_BYTES = 1 << 18
RECALLED_SEGMENTS = 16
"""Small segments are read until there are this many of them, or this many bytes; two are read in any case."""


def recall_batches(producers: ProducerStates, segments: Sequence[Segment], upto: int, now_ms: int) -> None:
    """Complete what a snapshot at offset `upto` told."""
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
