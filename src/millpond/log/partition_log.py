"""One partition's log: batches in, ranges of batches out.

Everything is called on the loop's thread. What may wait for the disk (syncs, removals, compaction, lookups by time,
truncation) is a job for a worker, whose result is reported back. The log owns its offsets; its parts own the rest:
`Segments`, `Durability` (what must be synced), `ProducerStates` with their `Snapshots`, `Compaction`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID, EpochEnd, Offset
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.log import aborted_transactions, retention
from millpond.log.aborted_transactions import Aborted
from millpond.log.checkpoints import encode_metadata
from millpond.log.checks import RecordFaults, assign_offsets, checked_headers, stamped_headers, trusted_headers
from millpond.log.compaction import Compaction, CompactionPlan
from millpond.log.durability import Durability, SyncTicket, run_tickets
from millpond.log.epochs import NO_EPOCH, LeaderEpochs
from millpond.log.limits import LogLimits
from millpond.log.lookup import LatestLookup, LookupBudget, TimedOffset, TimeLookup
from millpond.log.markers import Marker, encode_marker, read_marker
from millpond.log.names import EPOCHS_FILE, METADATA_FILE
from millpond.log.open_files import OpenFiles, TooManyOpen
from millpond.log.producers import ProducerFacts, ProducerStates, Verification
from millpond.log.removal import RemovalJob
from millpond.log.scan import Damaged
from millpond.log.segment import NO_TIMESTAMP, Segment
from millpond.log.segments import LogSlice, Segments
from millpond.log.snapshots import Snapshots
from millpond.log.truncation import Truncation
from millpond.wire.batch import CONTROL, BatchHeader, read_header
from millpond.wire.kernel import ShortProduce

RANGES_MAX = 64
"""The most segments that one read may span."""

ABORTED_MAX = 500
"""Aborted transactions of one read: a response with thousands of them would take the loop tens of milliseconds."""


class Appended(NamedTuple):
    """Where the batches were written."""

    first_offset: int
    last_offset: int
    append_time_ms: int
    """-1 unless the topic uses the broker's append time."""
    start_offset: int
    duplicate: bool


class LogRanges(NamedTuple):
    """The bytes of one read. The files are retained until they are sent."""

    ranges: list[FileRange]
    upper_offset: int
    """An upper bound: every record has a smaller offset."""


class PartitionLog:
    def __init__(
        self,
        files: OpenFiles,
        folder: str,
        limits: LogLimits,
        *,
        segments: list[Segment],
        start_offset: int = 0,
        synced_offset: int = 0,
        clean_offset: int = 0,
        evidence_floor: int | None = None,
        epochs: LeaderEpochs | None = None,
        producers: ProducerStates | None = None,
        snapshots: Snapshots | None = None,
        topic_id: UUID = NO_TOPIC_ID,
    ) -> None:
        self.disk = files.disk
        self.files = files
        """Shared by all logs of the store."""
        self.folder = folder
        self.limits = limits
        self.segments = Segments(segments)
        self.start_offset = Offset(start_offset)
        self.end_offset = Offset(self.segments.active.next_offset)
        self.epochs = epochs or LeaderEpochs()
        self.producers = producers or ProducerStates()
        self.snapshots = snapshots or Snapshots(files.disk, folder, [])
        self.durability = Durability(files.disk, folder, synced_offset)
        self.compaction = Compaction(files.disk, folder, files, self.durability)
        self.compaction.clean_offset = Offset(clean_offset)
        self.compaction.evidence_floor = Offset(evidence_floor or 0)
        self.compaction.is_floor_kept = evidence_floor is not None
        self.topic_id = topic_id
        self.last_append_ms = NO_TIMESTAMP
        self.closed = False
        self.may_use_reserve = False
        """Whether it may grow on a full disk: the metadata log may, so that topics can be deleted."""
        self._truncation: Truncation | None = None

    # Facts

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    def size_from(self, offset: int) -> int:
        """The number of bytes from `offset` on, or slightly more: reads no file."""
        return sum(segment.size_from(offset) for segment in self.segments.from_offset(offset))

    @property
    def last_epoch(self) -> int:
        """The latest leader epoch, even if nothing was written in it; -1 if none is known."""
        return self.epochs.latest

    @property
    def last_written_epoch(self) -> int:
        """The leader epoch of the last record; -1 if none is known."""
        if not self.end_offset:
            return NO_EPOCH
        written = self.epochs.of(self.end_offset - 1)
        # Retention may have removed all records; then the latest epoch is the best known.
        return self.epochs.latest if written == NO_EPOCH else written

    @property
    def evidence_floor(self) -> Offset:
        """A replica that ends below it and was not copied from here may hold records that tombstones deleted."""
        return self.compaction.evidence_floor

    @property
    def synced_offset(self) -> Offset:
        return self.durability.synced_offset

    @property
    def failed(self) -> OSError | None:
        """Why the log is offline until the next restart."""
        return self.durability.failed

    @property
    def dirty(self) -> bool:
        """Whether a power cut would lose anything."""
        return self.end_offset > self.durability.synced_offset or bool(self.durability)

    @property
    def is_online(self) -> bool:
        return self.durability.failed is None and not self.closed and self._truncation is None

    def _check_online(self) -> None:
        if self.durability.failed is not None or self.closed or self._truncation is not None:
            raise self._offline()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of this log not above `epoch`, and where it ends; (-1, -1) if there is none."""
        return self.epochs.end_of(epoch, self.end_offset)

    def end_of(self, epoch: int) -> EpochEnd | None:
        """As `end_offset_for_epoch`, but an epoch above the latest yields the latest, as OffsetForLeaderEpoch
        requires."""
        if self.epochs.latest < 0:
            return None
        return EpochEnd(*self.epochs.end_of(min(epoch, self.epochs.latest), self.end_offset))

    def begin_epoch(self, epoch: int) -> int:
        """Begin a leader epoch at the log end, before anything is written in it; its start offset."""
        if self.epochs.assign(epoch, self.end_offset):
            self.owe_epochs()
        return self.epochs.start_of(epoch, self.end_offset)

    def set_topic_id(self, topic_id: UUID) -> None:
        """Set the topic id; it is on disk after the next sync."""
        if topic_id == self.topic_id:
            return
        file = self.disk.open(f"{self.folder}/{METADATA_FILE}", create=True)
        try:
            file.truncate(0)
            file.append((encode_metadata(topic_id),))
        finally:
            file.close()
        # Assigned last, so that a failed write is retried.
        self.topic_id = topic_id
        self.owe_topic_id()

    def owe_topic_id(self) -> None:
        self.durability.owe_file(METADATA_FILE)

    def owe_epochs(self) -> None:
        """The leader epoch file must be rewritten."""
        self.durability.owe_note(EPOCHS_FILE, self.epochs.encode)

    # Writing

    def append(
        self,
        batches: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        from_client: bool = True,
        verification: Verification | None = None,
        faults: RecordFaults | None = None,
        unpacked_bytes_max: int | None = None,
    ) -> Appended:
        """Assign the next offsets and write the batches, all or nothing; the buffer is patched in place.

        A transactional batch needs a `verification`. A refusal leaves everything as it was. See
        `checks.checked_headers` for the last two.
        """
        self._check_online()
        limits = self.limits
        if from_client:
            headers = checked_headers(batches, limits, now_ms, faults, unpacked_bytes_max)
            for header in headers:
                if header.producer_id >= 0:
                    seen = self.producers.check(headers, verification, self.limits.producers_max)
                    if seen is not None:
                        time_ms = seen.timestamp if limits.timestamp_type_append else -1
                        return Appended(seen.first_offset, seen.last_offset, time_ms, self.start_offset, True)
                    break
        else:
            headers = trusted_headers(batches)
            self.producers.check_trusted(headers, verification)
        append_time_ms = -1
        if limits.timestamp_type_append and from_client:
            append_time_ms = now_ms
            headers = stamped_headers(batches, headers, now_ms)
        first_offset = self.end_offset
        last_offset = assign_offsets(batches, headers, first_offset, leader_epoch)
        try:
            self._write(batches, last_offset, now_ms, urgent=not from_client)
        except Refused:
            self.producers.note_unwritten(headers)
            raise
        self._take_in(headers, first_offset, leader_epoch, now_ms, batches)
        return Appended(first_offset, last_offset, append_time_ms, self.start_offset, False)

    def append_short(self, short: ShortProduce, leader_epoch: int, now_ms: int) -> int | None:
        """As `append` for a small batch in the common case; its offset.

        None leaves everything as it was: `append` then writes the batch or explains the refusal.
        """
        limits = self.limits
        if (
            self.durability.failed is not None
            or self.closed
            or self._truncation is not None
            or self.files.room.is_short
            or limits.timestamp_type_append
            or limits.cleanup_compact
            or leader_epoch > self.epochs.latest
            or short.size > limits.max_message_bytes
            or short.max_timestamp - now_ms > limits.timestamp_after_max_ms
            or now_ms - short.base_timestamp > limits.timestamp_before_max_ms
        ):
            return None
        header = None
        if short.producer_id >= 0:
            header = read_header(short.records)
            if self.producers.check((header,), None, limits.producers_max) is not None:
                return None
        offset = self.end_offset
        try:
            if not self.segments.active.append_short(short, offset, leader_epoch, now_ms, limits):
                return None
        except OSError as error:
            self._cut_torn_tail(error)
            return None
        if header is not None:
            self.producers.note(header, offset, now_ms)
        self.end_offset = Offset(offset + short.record_count)
        self.last_append_ms = now_ms
        return offset

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
        """Write the marker that ends the producer's transaction. Without an open transaction it has no effect."""
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        batch = encode_marker(Marker(committed, coordinator_epoch), producer_id, producer_epoch, now_ms)
        return self.append(memoryview(batch), leader_epoch=leader_epoch, now_ms=now_ms, from_client=False)

    def _write(self, batches: memoryview, last_offset: int, now_ms: int, *, urgent: bool) -> None:
        """Write; a failure becomes a refusal that leaves nothing of the batches behind."""
        if not self.may_use_reserve:
            self.files.room.check(self.folder)
        limits = self.limits
        active = self.segments.active
        try:
            if active.size and (
                not active.fits(len(batches), last_offset, limits.segment_bytes, limits.index_bytes_max)
                or active.age_ms(now_ms) >= limits.age_max_ms
            ):
                self.roll()
                active = self.segments.active
            active.write(batches, urgent=urgent)
        except OSError as error:
            self._cut_torn_tail(error)
            raise self.files.room.refusal(self.folder, error) from error

    def _cut_torn_tail(self, error: OSError) -> None:
        active = self.segments.active
        try:
            if active.open_file is not None:
                active.cut_torn_tail()
                # A power cut could bring it back, behind a log that counts as safe up to here.
                self.durability.owe_segment(active)
        except OSError:
            self.fail(error)

    def _take_in(
        self, headers: Sequence[BatchHeader], offset: int, leader_epoch: int, now_ms: int, batches: memoryview
    ) -> None:
        """Update everything in memory for batches that were written."""
        active = self.segments.active
        if leader_epoch > self.epochs.latest and self.epochs.assign(leader_epoch, offset):
            self.owe_epochs()
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

    def append_follower(self, batches: memoryview, *, now_ms: int, evidence_floor: int = 0) -> Appended:
        """Write a leader's batches unchanged: their offsets and epochs must continue this log.

        `evidence_floor` is the leader's, if the batches were fetched from below it.
        """
        self._check_online()
        headers = trusted_headers(batches)
        first_offset = headers[0].base_offset
        begins_inside = first_offset < self.end_offset < headers[0].next_offset and not self.segments.size_bytes
        expected, epoch = first_offset if begins_inside else int(self.end_offset), self.epochs.latest
        for header in headers:
            if header.base_offset < expected or header.leader_epoch < epoch:
                raise Refused(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.folder}: a batch at offset {header.base_offset} of leader epoch {header.leader_epoch} "
                    f"cannot follow offset {expected - 1} of leader epoch {epoch}",
                )
            expected, epoch = header.next_offset, header.leader_epoch
        try:
            # First, because the floor must be known wherever the batches are.
            self.compaction.inherit_floor(evidence_floor)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder}: {error}") from error
        if begins_inside:
            self._begin_at(first_offset)
        self._write(batches, expected - 1, now_ms, urgent=True)
        position = 0
        for header in headers:
            view = batches[position : position + header.size]
            self._take_in((header,), header.base_offset, header.leader_epoch, now_ms, view)
            position += header.size
        return Appended(first_offset, expected - 1, -1, self.start_offset, False)

    def _begin_at(self, base_offset: int) -> None:
        """Give an empty log a segment that begins below its start: the leader's start is inside a batch."""
        empty = self.segments.active
        if empty.base_offset == base_offset:
            # A previous attempt created it, and then the disk was full.
            return
        empty.close()
        try:
            fresh = Segment.create(self.files, self.folder, base_offset)
            # With both present, recovery with a start at or after the second would consider the first deleted.
            for path in empty.paths():
                if self.disk.exists(path):
                    self.disk.remove(path)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder}: {error}") from error
        self.durability.forget(empty)
        self.segments.replace([fresh])
        self.durability.owe_folder()

    def roll(self) -> Segment:
        """Seal the active segment and begin a new one; the new active segment."""
        sealed = self.segments.active
        if not sealed.size:
            return sealed
        try:
            # Everything that can fail happens before anything changes.
            sealed.flush_indexes()
            self.snapshots.write(self.end_offset, self.producers)
            fresh = Segment.create(self.files, self.folder, self.end_offset)
        except OSError as error:
            raise self.files.room.refusal(self.folder, error) from error
        sealed.seal()
        self.segments.add(fresh)
        self.durability.owe_segment(sealed)
        self.durability.owe_folder()
        return fresh

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_offset: int | None = None,
        min_one: bool = True,
        is_whole: bool = False,
    ) -> LogSlice:
        """The location of up to `max_bytes` from the batch that holds `offset`, in one segment and below
        `upper_offset`.

        With `min_one` the first batch is complete even if it is larger; with `is_whole` the last one is too, where
        its start is known in memory.
        """
        self._check_online()
        end = self.end_offset
        if offset < self.start_offset or offset > end:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {self.start_offset} to {self.end_offset}"
            )
        upper = end if upper_offset is None or upper_offset > end else upper_offset
        if offset >= upper:
            return LogSlice(None, offset, offset)
        try:
            return self.segments.slice(offset, max_bytes, upper, min_one, is_whole)
        except OSError as fault:
            raise self._unreadable(fault) from fault

    def read_ranges(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_offset: int | None = None,
        min_one: bool = True,
        is_whole: bool = False,
    ) -> LogRanges:
        """As `read`, across segments; without ranges if nothing is available yet.

        Compaction can leave many small segments of empty batches. A client that receives nothing else assumes its
        limits are too small (librdkafka fails), hence more than one segment.
        """
        result = LogRanges([], offset)
        try:
            part = self.read(offset, max_bytes, upper_offset=upper_offset, min_one=min_one, is_whole=is_whole)
        except Refused as refusal:
            if isinstance(refusal.__cause__, TooManyOpen):
                # All descriptors are in use for sending. The next fetch returns these records.
                return result
            raise
        while part.range is not None:
            result = LogRanges([*result.ranges, part.range], part.upper_offset)
            max_bytes -= part.range.length
            this, *following = self.segments.from_offset(part.first_offset)[:2]
            is_cut = part.range.position + part.range.length < this.size
            if is_cut or max_bytes <= 0 or not following or len(result.ranges) == RANGES_MAX:
                break
            if upper_offset is not None and following[0].base_offset >= upper_offset:
                break
            try:
                first_offset = following[0].base_offset
                part = self.read(first_offset, max_bytes, upper_offset=upper_offset, min_one=False, is_whole=is_whole)
            except Refused:
                # What was found so far is retained and valid; the next fetch continues from here.
                break
        return result

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, at least one; empty at the log end."""
        try:
            return self.read(offset, max_bytes).read()
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, fault: OSError) -> Refused:
        code = ErrorCode.CORRUPT_MESSAGE if isinstance(fault, Damaged) else ErrorCode.KAFKA_STORAGE_ERROR
        return Refused(code, f"{self.folder}: {fault}")

    # Transactions

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; the end of the log if none is open."""
        return self.stable_offset(self.end_offset)

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: how far a read_committed consumer may read."""
        # The first records of a transaction may have been deleted.
        return max(self.producers.stable_offset(high_watermark), self.start_offset)

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of every aborted transaction in this range, ordered by end offset."""
        return self.limited_aborted_transactions(from_offset, upper_offset, sys.maxsize)[0]

    def limited_aborted_transactions(
        self, from_offset: int, upper_offset: int, count_max: int = ABORTED_MAX
    ) -> tuple[list[tuple[int, int]], int]:
        """The same, and the end of the range, which is lowered if it has more than `count_max` of them."""
        aborted, upper_offset = self.aborted_between(from_offset, upper_offset, count_max)
        return [(entry.producer_id, entry.first_offset) for entry in aborted], upper_offset

    def aborted_between(
        self, from_offset: int, upper_offset: int, count_max: int = ABORTED_MAX
    ) -> tuple[list[Aborted], int]:
        """The same with their markers' offsets."""
        indexes = (segment.aborted for segment in self.segments.from_offset(from_offset))
        try:
            return aborted_transactions.between(indexes, from_offset, upper_offset, count_max)
        except OSError as fault:
            raise self._unreadable(fault) from fault

    def producer_states(self) -> list[ProducerFacts]:
        return self.producers.facts()

    # Syncing

    def sync_target(self) -> SyncTicket:
        """Everything that must be synced to make all appends so far durable. Run the ticket on a worker."""
        if self._truncation is not None:
            # Its files are about to go: a missing file would look like a failed sync.
            raise OSError(f"{self.folder} is being truncated")
        return self.durability.ticket(self.end_offset, self.segments.active)

    def synced(self, ticket: SyncTicket) -> None:
        """Take over the result after the ticket's `run` has returned."""
        self.durability.settle(ticket)

    def fail(self, error: OSError, ticket: SyncTicket | None = None) -> None:
        """Take the log offline for good, unless the ticket only lacked descriptors or disk space for small files."""
        self.durability.fail(error, ticket)

    def _offline(self) -> Refused:
        reason = "is being truncated" if self._truncation is not None else "is closed"
        if self.failed is not None:
            reason = f"is offline: {self.failed}"
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder} {reason}")

    def expire_producers(self, now_ms: int) -> list[int]:
        """Forget idempotent producers that have been idle for too long; their ids."""
        return self.producers.expire(now_ms, self.limits.producer_id_expiration_ms)

    # Shortening

    def delete_before(self, offset: int) -> None:
        """Move the log start forward; permanent once a checkpoint has been written.

        Retention removes the segments that lie wholly before it.
        """
        if offset > self.end_offset or offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside 0 to {self.end_offset}")
        self._check_online()
        if offset > self.start_offset:
            self._move_start(offset)

    def _move_start(self, offset: int) -> None:
        self.start_offset = Offset(offset)
        if self.epochs.cut_start(offset):
            self.owe_epochs()
        with contextlib.suppress(OSError):
            # A snapshot that cannot be removed does no harm, and the start has moved already.
            self.snapshots.drop_before(offset)

    def expired_segments(self, now_ms: int, upper_offset: int | None = None) -> list[Segment]:
        """The segments that retention may remove now, oldest first; `now_ms` should come from a `RetentionClock`."""
        if self.failed is not None or self.closed or self._truncation is not None:
            return []
        return retention.expired_segments(
            self.segments,
            self.limits,
            now_ms,
            start_offset=self.start_offset,
            upper_offset=self.end_offset if upper_offset is None else upper_offset,
            held=self.compaction.held,
        )

    def retire(self, segments: Sequence[Segment]) -> RemovalJob:
        """Take the oldest segments out of the log; the job removes their files, and any left from before, after
        `delay_ms`.

        If the active segment is among them, a new one replaces it. If the disk is too full for that, the others are
        still retired to free space.
        """
        if self.segments.active in segments:
            try:
                self.roll()
            except Refused:
                if len(segments) == 1:
                    raise
                segments = segments[:-1]
        self.segments.drop_oldest(segments)
        paths: list[str] = []
        for segment in segments:
            paths += segment.paths_to_remove()
            # Still owed: until its files are gone, a power cut would leave a torn segment before the safe ones.
            segment.is_gone = True
            segment.close()
        first_offset = self.segments[0].base_offset
        if segments and self.start_offset < first_offset:
            self._move_start(first_offset)
        away, delay_ms = self.durability.away, self.limits.file_delete_delay_ms
        number = away.asked = away.retire(paths)
        return RemovalJob(
            self.disk, self.folder, delay_ms=delay_ms, away=away, beginnings=away.beginnings, number=number
        )

    @property
    def owes_removal(self) -> bool:
        """Whether `retire` should be called for a job although there is nothing to retire."""
        return self.is_online and self.durability.away.owes_removal()

    def forget_epochs_at_end(self) -> None:
        """Drop leader epochs that began at the log end and wrote nothing: the leader does not know them.

        This is all that a truncation to the log end, or beyond it, has to do.
        """
        self._check_online()
        if self.epochs.cut_end(self.end_offset):
            self.owe_epochs()

    def begin_truncation(self, offset: int, *, is_new_start: bool = False, keeps: bool = False) -> Truncation:
        """Truncate to `offset`, as a follower must when its leader lacks the later records.

        With `is_new_start` everything goes and the log restarts at `offset`, where the leader's log begins. With
        `keeps` the removed batches stay in the folder for inspection. The caller writes a checkpoint, runs the result
        on a worker, and calls `finish_truncation`.
        """
        self._check_online()
        offset = max(offset, 0)
        try:
            # The worker must find in the files what the active segment's indexes hold only in memory.
            self.segments.active.flush_indexes()
            if not is_new_start:
                span = self.segments.from_offset(offset)[0].locate(offset)
                # A batch is kept whole or not at all.
                offset = min(offset, span.base_offset if span else self.end_offset)
        except OSError as error:
            raise self._unreadable(error) from error
        begins_anew = is_new_start or offset < self.segments[0].base_offset
        if begins_anew:
            # No removal may start from here on.
            self.durability.away.beginnings += 1
        # A crash may leave any part of a log that is given up, and recovery must not report that as damage.
        self.durability.cut_back(0 if is_new_start else offset)
        self.compaction.cut_back(offset)
        self._truncation = Truncation(
            self.disk,
            self.folder,
            self.limits,
            offset,
            self.segments.list,
            self.last_append_ms,
            is_new_start,
            keeps,
            begins_anew,
            ProducerStates() if begins_anew else self.producers.silent_since(self.segments[0].base_offset),
        )
        self.durability.away.others += 1
        return self._truncation

    def finish_truncation(self, truncation: Truncation, error: OSError | None = None) -> None:
        """Take over the result of a truncation. After an error the log is offline."""
        self._truncation = None
        self.durability.away.others -= 1
        if error is not None:
            self.durability.fail(error, has_lost=truncation.has_lost)
        if error is not None or self.closed:
            return
        assert truncation.result is not None, "it has not run"
        if truncation.begins_anew:
            self.durability.away.forget_retired()
        kept, active, self.producers, self.snapshots = truncation.result
        active.move("", self.files)
        for segment in self.segments[len(kept) :]:
            segment.close()
            self.durability.forget(segment)
        self.segments.replace([*kept, active])
        self.end_offset = Offset(active.next_offset)
        self.start_offset = self.end_offset if truncation.is_new_start else min(self.start_offset, self.end_offset)
        self.compaction.cut_back(self.end_offset)
        # In a compacted log the last remaining batch may end before the requested offset.
        self.durability.cut_back(self.end_offset)
        if self.epochs.cut_end(0 if truncation.is_new_start else self.end_offset):
            self.owe_epochs()
        self.durability.owe_folder()

    def give_up_truncation(self, truncation: Truncation) -> None:
        """Abandon a truncation that did not run: the log stays as it is."""
        assert self._truncation is truncation, "another one is under way"
        self._truncation = None
        # Retired files may be removed after all, by a new job: one made before must not be mistaken for it.
        self.durability.away.others -= 1

    # Compaction

    def compaction_candidate(
        self, now_ms: int, upper_offset: int | None = None, evidence_upto: int = 1 << 63
    ) -> CompactionPlan | None:
        """A plan for a worker, if it would free enough; then call `finish_compaction` or `give_up_compaction`."""
        if self.failed is not None or self.closed or self._truncation is not None:
            return None
        upper = self.end_offset if upper_offset is None else upper_offset
        return self.compaction.plan(
            self.segments,
            self.producers,
            self.limits,
            now_ms,
            start_offset=self.start_offset,
            upper_offset=self.stable_offset(upper),
            evidence_upto=evidence_upto,
        )

    def finish_compaction(self, plan: CompactionPlan) -> RemovalJob:
        """Swap the segments after the plan has run. The job removes the old files after its delay."""
        if self.failed is not None or self.closed or self._truncation is not None:
            return self.compaction.give_up(plan)
        try:
            return self.compaction.finish(plan, self.segments, self.snapshots, self.limits.file_delete_delay_ms)
        except OSError as error:
            self.fail(error)
            raise self._offline() from error

    def give_up_compaction(self, plan: CompactionPlan) -> RemovalJob:
        return self.compaction.give_up(plan)

    # Timestamps

    def time_lookup(
        self, timestamp: int | None, upper_offset: int | None = None, budget: LookupBudget | None = None
    ) -> TimeLookup:
        """A lookup of the first record below `upper_offset` that is not older than `timestamp`.

        Without a timestamp: the first record with the largest one. It runs on a worker, and must be repeated if it
        `is_stale` afterwards.
        """
        self._check_online()
        if timestamp is None:
            return LatestLookup(self.segments.list, self.start_offset, budget)
        upper = self.end_offset if upper_offset is None else upper_offset
        return TimeLookup(self.segments.list, self.start_offset, upper, timestamp, budget)

    def find_by_timestamp(self, timestamp: int | None, upper_offset: int | None = None) -> TimedOffset | None:
        """The result of `time_lookup`, immediately. Waits for the disk."""
        lookup = self.time_lookup(timestamp, upper_offset)
        lookup.run()
        return lookup.finish()

    def max_timestamp(self) -> TimedOffset | None:
        """The first record with the largest timestamp. Waits for the disk."""
        return self.find_by_timestamp(None)

    # Ending

    def close(self) -> None:
        """Sync everything and leave the folder ready for a clean start. Waits for the disk."""
        ticket = self.begin_close()
        if ticket is not None:
            (error,) = run_tickets(self.disk, self.folder, [ticket])
            self.end_close(ticket, error)
        self.abandon()

    def begin_close(self) -> SyncTicket | None:
        """Write what a clean start needs. The ticket syncs it; None if that is impossible."""
        if self.closed or self.failed is not None or self.durability.away.syncs or self._truncation is not None:
            # The outcome of a running sync is unknown, and a second one might miss its failure.
            return None
        active = self.segments.active
        try:
            active.flush_indexes()
            if self.end_offset not in self.snapshots.offsets and self.end_offset > 0:
                self.snapshots.write(self.end_offset, self.producers)
        except OSError:
            # Nothing is lost: the next start rebuilds them, as after a crash.
            return None
        ticket = self.sync_target()
        if active.aborted.entries() or active.aborted.is_shortened:
            ticket.paths.append(active.aborted.path)
            ticket.folders.add(self.folder)
        return ticket

    def end_close(self, ticket: SyncTicket, error: OSError | None) -> None:
        if error is None:
            self.synced(ticket)
        else:
            self.fail(error, ticket)
        self.abandon()

    def abandon(self) -> None:
        """Close all files as they are, as a crash would."""
        self.closed = self.durability.away.closed = True
        self.segments.close()
