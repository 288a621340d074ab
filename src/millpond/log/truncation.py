"""Shortening a log: at its front for good, at its end when another history won."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.ids import Offset
from millpond.log.producers import ProducerStates
from millpond.log.replaying import ended_transactions
from millpond.log.segment import Segment

if TYPE_CHECKING:
    from millpond.log.partition_log import PartitionLog


def truncate_to(log: PartitionLog, offset: int) -> None:
    """Forget every batch that ends after `offset`. Waits for the disk: no crash may bring back what was cut off."""
    if offset > log.bases[0]:
        place = log.segment_at(offset).locate(offset)
        # A batch is kept whole or not at all.
        offset = min(offset, place.base_offset) if place else offset
    log.debts.generation += 1
    log.synced_offset = Offset(min(log.synced_offset, offset))
    # First the note that less is safe, then the cut: the other way round a crash would look like damage.
    log.checkpoint_now()
    while len(log.segments) > 1 and log.active.base_offset >= offset:
        _remove(log, log.active)
        log.replace_segments(log.segments[:-1])
    if offset < log.active.base_offset:
        _restart_at(log, offset)
    place = log.active.locate(offset) if offset < log.active.next_offset else None
    if place is not None:
        log.active.cut(place.position, log.limits.index_interval_bytes)
    else:
        log.active.load_tail(log.limits.index_interval_bytes)
    log.end_offset = Offset(log.active.next_offset)
    log.start_offset = min(log.start_offset, log.end_offset)
    log.clean_offset = min(log.clean_offset, log.end_offset)
    log.debts.epochs |= log.epochs.cut_end(log.end_offset)
    log.snapshots.drop_after(log.end_offset)
    log.producers = _producers_again(log)
    log.active.file.sync()
    log.disk.sync_folder(log.folder)


def _restart_at(log: PartitionLog, offset: int) -> None:
    """The whole log lies above `offset`: begin anew there."""
    old = log.active
    log.replace_segments([Segment.create(log.disk, log.folder, offset)])
    log.debts.folders.add(log.folder)
    _remove(log, old)


def _remove(log: PartitionLog, segment: Segment) -> None:
    segment.close()
    for path in reversed(segment.paths()):
        if log.disk.exists(path):
            log.disk.remove(path)
    log.debts.forget(segment.base_offset)


def _producers_again(log: PartitionLog) -> ProducerStates:
    """The producers' states as the newest snapshot and the log after it tell them."""
    found = log.snapshots.newest(log.end_offset)
    start, states = found or (log.bases[0], ProducerStates())
    for segment in log.segments:
        if segment.size and segment.next_offset > start:
            for _ in ended_transactions(states, segment.file, segment.batches_from(start), start, log.last_append_ms):
                # The index of aborted transactions knows of them.
                continue
    return states
