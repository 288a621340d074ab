"""The batches before each producer's last one, read again from the end of the log.

A snapshot knows only the last batch of a producer. A client may have five in flight, and sends them all again when
their answers were lost in a restart: those that were written must be known, or it hears that they are out of order.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.log.producers import BATCHES_REMEMBERED, ProducerEntry, ProducerStates, Span
from millpond.log.scan import headers
from millpond.log.segment import Segment
from millpond.wire.batch import SEQUENCE_COUNT

ENTRIES_BACK = 64
"""How many entries of the offset index to go back: so many large batches, or 256 KiB of small ones."""

RETRIED_WITHIN_MS = 900_000
"""A producer that wrote nothing for so long has nothing left to send again; clients give up long before."""


def recall(states: ProducerStates, segments: Sequence[Segment], upto: int, now_ms: int) -> None:
    """Complete what a snapshot at offset `upto` told, as far as the last batches before it are cheap to find."""
    wanted = {
        producer_id: entry
        for producer_id, entry in states.entries.items()
        if len(entry.spans) == 1 and now_ms - entry.active_ms < RETRIED_WITHIN_MS
    }
    if not wanted:
        return
    earlier: dict[int, list[Span]] = {producer_id: [] for producer_id in wanted}
    # Two, because the last one may have just begun.
    for segment in [segment for segment in segments if segment.base_offset < upto and segment.size][-2:]:
        for _, header in headers(segment.file, segment.position_back(ENTRIES_BACK), segment.size):
            entry = wanted.get(header.producer_id)
            if entry is None or header.is_control or header.producer_epoch != entry.epoch:
                continue
            if header.base_offset < entry.spans[0].first_offset:
                earlier[header.producer_id].append(
                    Span(
                        header.base_sequence,
                        header.last_sequence,
                        header.base_offset,
                        header.last_offset,
                        header.max_timestamp,
                    )
                )
    for producer_id, entry in wanted.items():
        _put_before(entry, earlier[producer_id])


def _put_before(entry: ProducerEntry, spans: list[Span]) -> None:
    for span in reversed(spans):
        follows = (span.last_sequence + 1) % SEQUENCE_COUNT == entry.spans[0].base_sequence
        if len(entry.spans) == BATCHES_REMEMBERED or not follows:
            return
        entry.spans.insert(0, span)
