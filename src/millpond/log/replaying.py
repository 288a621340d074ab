"""Producers' states made again from batches that stand in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millpond.base.ports import File
from millpond.log.markers import read_marker
from millpond.log.producers import Ended, ProducerStates
from millpond.wire.batch import BatchHeader


def ended_transactions(
    states: ProducerStates, file: File, walked: Iterable[tuple[int, BatchHeader]], start: int, now_ms: int
) -> Iterator[Ended]:
    """Take in the batches from offset `start` on; those transactions that ended there, as they come.

    They count as written now: a producer must never be forgotten because its records bear old timestamps.
    """
    for position, header in walked:
        if header.producer_id < 0 or header.base_offset < start:
            continue
        marker = read_marker(file.read_at(position, header.size)) if header.is_control else None
        ended = states.note(header, header.base_offset, now_ms, marker)
        if ended is not None:
            yield ended
