"""One partition's log: batches in, places of batches out.

Everything is called on the loop's thread. What may wait for the disk (syncs, removals, compaction) is handed out as
a job for a worker and reported back.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID, Offset
from millpond.base.ports import Disk
from millpond.log import aborted, compaction, reading, retention, truncation
from millpond.log.checkpoints import encode_metadata
from millpond.log.checks import checked_headers, place, stamped_headers, trusted_headers
from millpond.log.epochs import LeaderEpochs
from millpond.log.handles import OpenSegments
from millpond.log.limits import LogLimits
from millpond.log.lookup import Found, LatestLookup, TimeLookup
from millpond.log.markers import Marker, encode_marker, read_marker
from millpond.log.names import METADATA_FILE
from millpond.log.producers import ProducerFacts, ProducerStates, Verification
from millpond.log.reading import LogSlice
from millpond.log.rewriting import mark_failed_sync
from millpond.log.segment import NO_TIMESTAMP, Segment
from millpond.log.snapshots import Snapshots
from millpond.log.syncing import Away, Debts, RemovalJob, SyncTicket, make_last_ticket, make_ticket
from millpond.log.together import run_tickets
from millpond.wire.batch import CONTROL, BatchHeader


class Appended(NamedTuple):
    """Where the batches went."""

    first_offset: int
    last_offset: int
    append_time_ms: int
    """-1 unless the topic stamps records with the broker's time."""
    start_offset: int
    duplicate: bool


class PartitionLog:
    """The segments of one partition, oldest first; the last one grows."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        limits: LogLimits,
        *,
        segments: list[Segment],
        start_offset: int = 0,
        synced_offset: int = 0,
        epochs: LeaderEpochs | None = None,
        producers: ProducerStates | None = None,
        snapshots: Snapshots | None = None,
        topic_id: UUID = NO_TOPIC_ID,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.limits = limits
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.start_offset = Offset(start_offset)
        self.end_offset = Offset(self.active.next_offset)
        self.synced_offset = Offset(synced_offset)
        self.clean_offset = Offset(0)
        """Compaction has been here: keys below are unique."""
        self.epochs = epochs or LeaderEpochs()
        self.producers = producers or ProducerStates()
        self.snapshots = snapshots or Snapshots(disk, folder, [])
        self.topic_id = topic_id
        self.last_append_ms = NO_TIMESTAMP
        self.failed: OSError | None = None
        self.closed = False
        self.held_segments: frozenset[int] = frozenset()
        """Base offsets of segments that a running compaction reads: nobody else may take them away."""
        self.checkpoint_now: Callable[[], None] = _nothing
        """Set by the store: written at once where a later crash must not find an older truth."""
        self.open_segments = OpenSegments()
        """Shared by the store's logs."""
        self.debts = Debts(folders={folder})
        self.away = Away()
        self._is_marked = False
        """Whether the next opening will know of the failure."""

    # Facts

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    @property
    def dirty(self) -> bool:
        """Whether a power cut would lose anything."""
        return self.end_offset > self.synced_offset or bool(self.debts)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of this log not above `epoch`, and where it ends; (-1, -1) if there is none."""
        return self.epochs.end_of(epoch, self.end_offset)

    def set_topic_id(self, topic_id: UUID) -> None:
        """Say whose partition this is; it reaches the disk with the next sync at the latest."""
        if topic_id == self.topic_id:
            return
        self.topic_id = topic_id
        file = self.disk.open(f"{self.folder}/{METADATA_FILE}", create=True)
        try:
            file.truncate(0)
            file.append((encode_metadata(topic_id),))
        finally:
            file.close()
        self.debts.metadata = True

    # Writing

    def append(
        self,
        batches: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        from_client: bool = True,
        verification: Verification | None = None,
    ) -> Appended:
        """Give the batches the next offsets and write them, all or nothing; the view is patched in place.

        The first batch of a transaction needs a `verification`. A refusal leaves everything as it was.
        """
        if self.failed is not None or self.closed:
            raise self._offline()
        limits = self.limits
        headers = checked_headers(batches, limits, now_ms) if from_client else trusted_headers(batches)
        if from_client:
            for header in headers:
                if header.producer_id >= 0:
                    seen = self.producers.check(headers, verification)
                    if seen is not None:
                        time_ms = seen.timestamp if limits.timestamp_type_append else -1
                        return Appended(seen.first_offset, seen.last_offset, time_ms, self.start_offset, True)
                    break
        else:
            self.producers.check_trusted(headers, verification)
        append_time_ms = -1
        if limits.timestamp_type_append and from_client:
            append_time_ms = now_ms
            headers = stamped_headers(batches, headers, now_ms)
        first_offset = self.end_offset
        last_offset = place(batches, headers, first_offset, leader_epoch)
        self._write(batches, last_offset, now_ms)
        self._take_in(headers, first_offset, leader_epoch, now_ms, batches)
        return Appended(first_offset, last_offset, append_time_ms, self.start_offset, False)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int,
        *,
        now_ms: int,
        leader_epoch: int,
        transaction_version: int = 0,
    ) -> Appended:
        """Write how the producer's transaction ended. Without an open transaction it does no harm."""
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        batch = encode_marker(Marker(committed, coordinator_epoch), producer_id, producer_epoch, now_ms)
        return self.append(memoryview(batch), leader_epoch=leader_epoch, now_ms=now_ms, from_client=False)

    def _write(self, batches: memoryview, last_offset: int, now_ms: int) -> None:
        limits = self.limits
        active = self.active
        try:
            if active.size and (
                not active.fits(len(batches), last_offset, limits.segment_bytes, limits.index_bytes_max)
                or active.age_ms(now_ms) >= limits.age_max_ms
            ):
                self.roll()
                active = self.active
            file = active.file
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder}: {error}") from error
        try:
            file.append((batches,))
        except OSError as error:
            self._drop_torn_tail(error)
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder}: {error}") from error

    def _drop_torn_tail(self, error: OSError) -> None:
        try:
            self.active.file.truncate(self.active.size)
        except OSError:
            self.fail(error)

    def _take_in(
        self, headers: Sequence[BatchHeader], offset: int, leader_epoch: int, now_ms: int, batches: memoryview
    ) -> None:
        """The batches are written: everything in memory follows."""
        active = self.active
        if leader_epoch > self.epochs.latest:
            self.debts.epochs |= self.epochs.assign(leader_epoch, offset)
        if active.first_append_ms is None:
            active.first_append_ms = now_ms
        interval = self.limits.index_interval_bytes
        position = 0
        for header in headers:
            last_offset = offset + header.last_offset_delta
            size = header.batch_length + 12
            active.note(offset, last_offset, header.max_timestamp, size, interval)
            if header.producer_id >= 0:
                marker = read_marker(batches[position : position + size]) if header.attributes & CONTROL else None
                ended = self.producers.note(header, offset, now_ms, marker)
                if ended is not None:
                    active.note_ended(ended)
            offset = last_offset + 1
            position += size
        self.end_offset = Offset(offset)
        if now_ms > active.appended_ms:
            active.appended_ms = now_ms
        self.last_append_ms = now_ms

    def append_follower(self, batches: memoryview, *, now_ms: int) -> Appended:
        """Write a leader's batches as they are: their offsets and epochs are its own, and must go on from here."""
        if self.failed is not None or self.closed:
            raise self._offline()
        headers = trusted_headers(batches)
        expected: int = self.end_offset
        for header in headers:
            if header.base_offset < expected:
                raise Refused(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.folder}: a batch at offset {header.base_offset} cannot follow offset {expected - 1}",
                )
            expected = header.next_offset
        first_offset = headers[0].base_offset
        self._write(batches, expected - 1, now_ms)
        position = 0
        for header in headers:
            view = batches[position : position + header.size]
            self._take_in((header,), header.base_offset, header.leader_epoch, now_ms, view)
            position += header.size
        return Appended(first_offset, expected - 1, -1, self.start_offset, False)

    def roll(self) -> Segment:
        """Seal the active segment and begin a new one; the new active segment."""
        if not self.active.size:
            return self.active
        sealed = self.active
        try:
            # All that can fail comes before anything changes.
            sealed.flush_indexes()
            self.snapshots.write(self.end_offset, self.producers)
            fresh = Segment.create(self.disk, self.folder, self.end_offset)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder}: {error}") from error
        sealed.seal()
        self.replace_segments([*self.segments, fresh])
        self.debts.sealed_bases.append(sealed.base_offset)
        self.debts.folders.add(self.folder)
        return fresh

    # Reading

    def read(self, offset: int, max_bytes: int, *, upper_offset: int | None = None, min_one: bool = True) -> LogSlice:
        """Where up to `max_bytes` from the batch that holds `offset` lie, in one segment and below `upper_offset`.

        With `min_one` the first batch comes whole even if it alone is larger.
        """
        if self.failed is not None or self.closed:
            raise self._offline()
        end = self.end_offset
        if offset < self.start_offset or offset > end:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {self.start_offset} to {self.end_offset}"
            )
        upper = end if upper_offset is None or upper_offset > end else upper_offset
        if offset >= upper:
            return LogSlice(None, offset)
        try:
            return reading.read_slice(self, offset, max_bytes, upper, min_one)
        except OSError as fault:
            raise reading.unreadable(self.folder, fault) from fault

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset` on, at least one; empty at the end of the log."""
        try:
            return reading.whole_batches(self.read(offset, max_bytes))
        except OSError as error:
            raise reading.unreadable(self.folder, error) from error

    # Transactions

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; the end of the log if none is open."""
        return self.stable_offset(self.end_offset)

    def stable_offset(self, high_watermark: int) -> int:
        """How far a consumer may read that wants committed transactions only."""
        # The first records of a transaction may have been deleted meanwhile.
        return max(self.producers.stable_offset(high_watermark), self.start_offset)

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of every aborted transaction in this range, ordered by where it ended."""
        first = max(bisect_right(self.bases, from_offset) - 1, 0)
        try:
            found = aborted.between((each.aborted for each in self.segments[first:]), from_offset, upper_offset)
        except OSError as fault:
            raise reading.unreadable(self.folder, fault) from fault
        return [(entry.producer_id, entry.first_offset) for entry in found]

    def verification(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int) -> Verification | None:
        """To be had before the coordinator is asked whether this partition is in the producer's transaction.

        None if the producer's transaction is known here already: then nobody needs to be asked.
        """
        return self.producers.verification(producer_id, producer_epoch, sequence, now_ms)

    def producer_states(self) -> list[ProducerFacts]:
        """All producers that this partition remembers."""
        return self.producers.facts()

    # Making it last

    def sync_target(self) -> SyncTicket:
        """All that must be synced for everything appended so far. The ticket's `run` belongs on a worker thread."""
        return make_ticket(self)

    def synced(self, ticket: SyncTicket) -> None:
        """The ticket's `run` has returned."""
        ticket.release()
        if ticket.debts.generation != self.debts.generation or self.closed:
            return
        self.debts.settle(ticket.debts)
        if ticket.offset > self.synced_offset:
            self.synced_offset = ticket.offset

    def fail(self, error: OSError, ticket: SyncTicket | None = None) -> None:
        """Close the log for good. What a failed sync lost stays lost, so a later success would prove nothing."""
        if ticket is not None:
            ticket.release()
        if self.failed is None:
            self.failed = error
            self.mark_failure()

    def mark_failure(self) -> None:
        """Tell the next opening that the disk may lack what the page cache still has. Tried again until it is told.

        It needs no sync: a power cut takes the page cache, too.
        """
        if self.failed is None or self._is_marked or self.closed:
            return
        with contextlib.suppress(OSError):
            mark_failed_sync(self.disk, self.folder)
            self._is_marked = True

    def _offline(self) -> Refused:
        reason = f"is offline: {self.failed}" if self.failed is not None else "is closed"
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder} {reason}")

    def expire_producers(self, now_ms: int) -> list[int]:
        """Forget idempotent producers that have been silent for too long; their ids."""
        return self.producers.expire(now_ms, self.limits.producer_id_expiration_ms)

    # Shortening

    def segment_at(self, base_offset: int) -> Segment:
        return self.segments[bisect_right(self.bases, base_offset) - 1]

    def delete_before(self, offset: int) -> None:
        """Move the start of the log forward, for good; retention removes the segments that lie wholly before it."""
        if offset > self.end_offset or offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside 0 to {self.end_offset}")
        if offset > self.start_offset:
            self._move_start(offset)
        try:
            # Even if retention has moved the start already: that alone is not on disk yet.
            self.checkpoint_now()
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder}: {error}") from error

    def _move_start(self, offset: int) -> None:
        self.start_offset = Offset(offset)
        self.debts.epochs |= self.epochs.cut_start(offset)
        self.snapshots.drop_before(offset)

    def expired_segments(self, now_ms: int, upper_offset: int | None = None) -> list[Segment]:
        """The segments that retention may take now, oldest first; `now_ms` should be a `RetentionClock`'s time."""
        if self.failed is not None or self.closed:
            return []
        return retention.expired_segments(self, now_ms, self.end_offset if upper_offset is None else upper_offset)

    def retire(self, segments: Sequence[Segment]) -> RemovalJob:
        """Take the oldest segments out of the log; the job removes their files once `delay_ms` has passed.

        If the active segment is among them a new one takes its place.
        """
        if self.active in segments:
            self.roll()
        gone = list(segments)
        assert gone == self.segments[: len(gone)], "only the oldest segments can be retired"
        paths: list[str] = []
        for segment in gone:
            paths += segment.paths()
            segment.close()
            self.debts.forget(segment.base_offset)
        self.replace_segments(self.segments[len(gone) :])
        if gone and self.start_offset < self.bases[0]:
            self._move_start(self.bases[0])
        return RemovalJob(self.disk, self.folder, tuple(paths), self.limits.file_delete_delay_ms, self.away)

    def replace_segments(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    def truncate_to(self, offset: int) -> None:
        """Forget every batch that ends after `offset`, as a follower must that has what its leader has not.

        Waits for the disk: no crash may bring back what was cut off.
        """
        if self.failed is not None or self.closed:
            raise self._offline()
        if offset >= self.end_offset:
            return
        try:
            truncation.truncate_to(self, max(offset, 0))
        except OSError as error:
            self.fail(error)
            raise self._offline() from error

    # Compaction

    def compaction_candidate(self, now_ms: int, upper_offset: int | None = None) -> compaction.CompactionPlan | None:
        """A plan to run on a worker, if there is enough to gain; then `finish_compaction` or `give_up_compaction`."""
        if self.failed is not None or self.closed:
            return None
        return compaction.candidate(self, now_ms, self.end_offset if upper_offset is None else upper_offset)

    def finish_compaction(self, plan: compaction.CompactionPlan) -> RemovalJob:
        """The plan has run: swap the segments. The job removes the old files after its delay."""
        if self.failed is not None or self.closed:
            return compaction.give_up(self, plan)
        try:
            return compaction.finish(self, plan)
        except OSError as error:
            self.fail(error)
            raise self._offline() from error
        finally:
            compaction.let_go(self, plan)

    def give_up_compaction(self, plan: compaction.CompactionPlan) -> RemovalJob:
        """The plan failed: everything stays as it was."""
        return compaction.give_up(self, plan)

    # By time

    def time_lookup(self, timestamp: int | None, upper_offset: int | None = None) -> TimeLookup:
        """To find the first record below `upper_offset` that is not older than `timestamp`.

        Without a timestamp: the first record with the largest one. It runs on a worker; once it is back it may have
        to be made again (`TimeLookup.is_stale`).
        """
        if self.failed is not None or self.closed:
            raise self._offline()
        if timestamp is None:
            return LatestLookup(self.segments, self.start_offset)
        upper = self.end_offset if upper_offset is None else upper_offset
        return TimeLookup(self.segments, self.start_offset, upper, timestamp)

    def find_by_timestamp(self, timestamp: int | None, upper_offset: int | None = None) -> Found | None:
        """The answer of such a look-up, at once. Waits for the disk."""
        lookup = self.time_lookup(timestamp, upper_offset)
        lookup.run()
        return lookup.finish()

    def max_timestamp(self) -> Found | None:
        """The first record with the largest timestamp. Waits for the disk."""
        return self.find_by_timestamp(None)

    # Ending

    def close(self) -> None:
        """Make everything durable and leave the folder as a clean start wants it. Waits for the disk."""
        ticket = self.begin_close()
        if ticket is not None:
            (error,) = run_tickets(self.disk, self.folder, [ticket])
            self.end_close(ticket, error)
        self.abandon()

    def begin_close(self) -> SyncTicket | None:
        """Write what a clean start wants to find. The ticket makes it last; None if that cannot be."""
        if self.closed or self.failed is not None or self.away.syncs:
            # How a sync ends that is under way nobody knows yet, and a second one might miss its failure.
            return None
        try:
            return make_last_ticket(self)
        except OSError as error:
            self.fail(error)
            return None

    def end_close(self, ticket: SyncTicket, error: OSError | None) -> None:
        """The ticket has been run."""
        if error is None:
            self.synced(ticket)
        else:
            self.fail(error, ticket)
        self.abandon()

    def abandon(self) -> None:
        """Let all files go as they are, as a crash would."""
        self.closed = self.away.closed = True
        for segment in self.segments:
            segment.close()


def _nothing() -> None: ...
