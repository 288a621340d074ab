"""One partition's log: batches in, ranges of batches out.

Everything is called on the loop's thread. What may wait for the disk (syncs, removals, compaction, look-ups by time,
truncation) is handed out as a job for a worker and reported back. The log owns its offsets; its parts own the rest:
`Segments`, `Durability` (what is owed to the disk), `ProducerStates` with their `Snapshots`, `Compaction`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID, EpochEnd, Offset
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.log import aborted_transactions, retention
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
"""Of how many segments one read may take."""


class Appended(NamedTuple):
    """Where the batches went."""

    first_offset: int
    last_offset: int
    append_time_ms: int
    """-1 unless the topic stamps records with the broker's time."""
    start_offset: int
    duplicate: bool


class LogRanges(NamedTuple):
    """The bytes of one read. The files are retained for whoever sends them."""

    ranges: list[FileRange]
    upper_offset: int
    """No record of it has this offset or a later one."""


class PartitionLog:
    """The log of one partition in one folder."""

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
        """Shared by the store's logs."""
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
        """Whether it may grow on a disk that is full: the metadata may, so that something can be deleted."""
        self._truncation: Truncation | None = None

    # Facts

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    def size_from(self, offset: int) -> int:
        """How many bytes the log has from `offset` on, or a few more: reads no file."""
        return sum(segment.size_from(offset) for segment in self.segments.from_offset(offset))

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, or one that has begun since; -1 if none is known."""
        return self.epochs.latest

    @property
    def last_written_epoch(self) -> int:
        """The leader epoch of the last record, although a later one may have begun since; -1 if none is known."""
        if not self.end_offset:
            return NO_EPOCH
        written = self.epochs.of(self.end_offset - 1)
        # Retention may have removed all records; the latest epoch is then the best that is known.
        return self.epochs.latest if written == NO_EPOCH else written

    @property
    def evidence_floor(self) -> Offset:
        """A replica that ends below it, and was not copied from here, may hold what tombstones have deleted."""
        return self.compaction.evidence_floor

    @property
    def synced_offset(self) -> Offset:
        return self.durability.synced_offset

    @property
    def failed(self) -> OSError | None:
        """Why the log is offline until the next start."""
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
        """The same as replicas ask it of each other: an epoch above the last one is answered by the last one."""
        if self.epochs.latest < 0:
            return None
        return EpochEnd(*self.epochs.end_of(min(epoch, self.epochs.latest), self.end_offset))

    def begin_epoch(self, epoch: int) -> int:
        """A leader epoch begins at the end of the log, though nothing is written in it yet; where it began."""
        if self.epochs.assign(epoch, self.end_offset):
            self.owe_epochs()
        return self.epochs.start_of(epoch, self.end_offset)

    def set_topic_id(self, topic_id: UUID) -> None:
        """Say whose partition this is; it reaches the disk with the next sync at the latest."""
        if topic_id == self.topic_id:
            return
        file = self.disk.open(f"{self.folder}/{METADATA_FILE}", create=True)
        try:
            file.truncate(0)
            file.append((encode_metadata(topic_id),))
        finally:
            file.close()
        # Only now: who found no room for it tries again.
        self.topic_id = topic_id
        self.owe_topic_id()

    def owe_topic_id(self) -> None:
        self.durability.owe_file(METADATA_FILE)

    def owe_epochs(self) -> None:
        """The file of the leader epochs is not what they are."""
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
        """Give the batches the next offsets and write them, all or nothing; the view is patched in place.

        A batch of a transaction needs a `verification`. A refusal leaves everything as it was. See
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
        """The same as `append` for a small batch, where nothing is out of the ordinary; its offset.

        None leaves everything as it was, and leaves it to `append`: to write it another way, or to say why not.
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
        """Write how the producer's transaction ended. Without an open transaction it does no harm."""
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        batch = encode_marker(Marker(committed, coordinator_epoch), producer_id, producer_epoch, now_ms)
        return self.append(memoryview(batch), leader_epoch=leader_epoch, now_ms=now_ms, from_client=False)

    def _write(self, batches: memoryview, last_offset: int, now_ms: int, *, urgent: bool) -> None:
        """OSError and all that comes with it is told as a refusal; then nothing of the batches is there."""
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
        """The batches are written: everything in memory follows."""
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
        """Write a leader's batches as they are: their offsets and epochs are its own, and must go on from here.

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
        """Let an empty log have a segment that begins below its start: the leader's start lies inside a batch."""
        empty = self.segments.active
        if empty.base_offset == base_offset:
            # It has begun there, and then there was no room for the batch.
            return
        empty.close()
        try:
            fresh = Segment.create(self.files, self.folder, base_offset)
            # With both of them there, a start at or after the second would take the first one for deleted.
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
            # All that can fail comes before anything changes.
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
        """Where up to `max_bytes` from the batch that holds `offset` lie, in one segment and below `upper_offset`.

        With `min_one` the first batch comes whole even if it alone is larger; with `is_whole` the last one does, too,
        where memory tells where it begins.
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
        """As `read`, over as many segments as it takes; without ranges when there is nothing yet.

        Compaction can leave many small segments of batches without records. A client that is sent only such ones
        again and again takes its limits for too small (librdkafka ends with an error), hence more than one segment.
        """
        result = LogRanges([], offset)
        try:
            part = self.read(offset, max_bytes, upper_offset=upper_offset, min_one=min_one, is_whole=is_whole)
        except Refused as refusal:
            if isinstance(refusal.__cause__, TooManyOpen):
                # Others are being sent from all of them. What waits here comes with the next fetch.
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
                # What was found so far is retained, and good; the next fetch begins where this is.
                break
        return result

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset` on, at least one; empty at the end of the log."""
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
        """How far a consumer may read that wants committed transactions only."""
        # The first records of a transaction may have been deleted meanwhile.
        return max(self.producers.stable_offset(high_watermark), self.start_offset)

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of every aborted transaction in this range, ordered by where it ended."""
        indexes = (segment.aborted for segment in self.segments.from_offset(from_offset))
        try:
            aborted = aborted_transactions.between(indexes, from_offset, upper_offset)
        except OSError as fault:
            raise self._unreadable(fault) from fault
        return [(entry.producer_id, entry.first_offset) for entry in aborted]

    def producer_states(self) -> list[ProducerFacts]:
        """All producers that this partition remembers."""
        return self.producers.facts()

    # Making it last

    def sync_target(self) -> SyncTicket:
        """All that must be synced for everything appended so far. The ticket's `run` belongs on a worker thread."""
        if self._truncation is not None:
            # Its files are about to go: not finding them would look like a failed sync.
            raise OSError(f"{self.folder} is being cut back")
        return self.durability.ticket(self.end_offset, self.segments.active)

    def synced(self, ticket: SyncTicket) -> None:
        """The ticket's `run` has returned."""
        self.durability.settle(ticket)

    def fail(self, error: OSError, ticket: SyncTicket | None = None) -> None:
        """Take the log offline for good, unless the ticket only lacked descriptors, or room for its notes."""
        self.durability.fail(error, ticket)

    def _offline(self) -> Refused:
        reason = "is being cut back" if self._truncation is not None else "is closed"
        if self.failed is not None:
            reason = f"is offline: {self.failed}"
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.folder} {reason}")

    def expire_producers(self, now_ms: int) -> list[int]:
        """Forget idempotent producers that have been silent for too long; their ids."""
        return self.producers.expire(now_ms, self.limits.producer_id_expiration_ms)

    # Shortening

    def delete_before(self, offset: int) -> None:
        """Move the start of the log forward; it is for good once a checkpoint has been written.

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
            # One that cannot be removed does no harm, and whoever has come so far must go on.
            self.snapshots.drop_before(offset)

    def expired_segments(self, now_ms: int, upper_offset: int | None = None) -> list[Segment]:
        """The segments that retention may take now, oldest first; `now_ms` should be a `RetentionClock`'s time."""
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
        """Take the oldest segments out of the log; the job removes their files once `delay_ms` has passed, and with
        them what is left of those before.

        If the active segment is among them a new one takes its place. While there is no room for that one, the others
        go: they make some.
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
            # Owed as before: until its files are gone a power cut would leave a torn one before what is safe.
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
        """Whether `retire` should be asked for a job though there is nothing to retire."""
        return self.is_online and self.durability.away.owes_removal()

    def forget_epochs_at_end(self) -> None:
        """Forget leader epochs that began at the end of the log and wrote nothing: the leader knows nothing of them.

        All that a truncation to the end, or behind it, has to do.
        """
        self._check_online()
        if self.epochs.cut_end(self.end_offset):
            self.owe_epochs()

    def begin_truncation(self, offset: int, *, is_new_start: bool = False, keeps: bool = False) -> Truncation:
        """Forget every batch that ends after `offset`, as a follower must that has what its leader has not.

        With `is_new_start` all of them, and the log goes on at `offset`: the leader's log begins only there. If it
        `keeps` them, somebody can still look at what was forgotten. The caller has a checkpoint written, runs the
        result on a worker, and calls `finish_truncation`.
        """
        self._check_online()
        offset = max(offset, 0)
        try:
            # What of the active segment's indexes is in memory only, the worker must find in the files.
            self.segments.active.flush_indexes()
            if not is_new_start:
                span = self.segments.from_offset(offset)[0].locate(offset)
                # A batch is kept whole or not at all.
                offset = min(offset, span.base_offset if span else self.end_offset)
        except OSError as error:
            raise self._unreadable(error) from error
        begins_anew = is_new_start or offset < self.segments[0].base_offset
        if begins_anew:
            # No removal begins from here on.
            self.durability.away.beginnings += 1
        # A crash may find any part of a log that is given up whole, and must not take it for damage.
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
        """The truncation has run: go on where it ends. After an error the log is offline."""
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
        # In a log that was compacted the last batch that stays may end before the offset that was asked for.
        self.durability.cut_back(self.end_offset)
        if self.epochs.cut_end(0 if truncation.is_new_start else self.end_offset):
            self.owe_epochs()
        self.durability.owe_folder()

    def give_up_truncation(self, truncation: Truncation) -> None:
        """It will not be run: the log stays as it is."""
        assert self._truncation is truncation, "another one is under way"
        self._truncation = None
        # What waits to be removed may go after all, by another job: one that was made for this beginning must not be
        # taken for one of the next.
        self.durability.away.others -= 1

    # Compaction

    def compaction_candidate(
        self, now_ms: int, upper_offset: int | None = None, evidence_upto: int = 1 << 63
    ) -> CompactionPlan | None:
        """A plan to run on a worker, if there is enough to gain; then `finish_compaction` or `give_up_compaction`."""
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
        """The plan has run: swap the segments. The job removes the old files after its delay."""
        if self.failed is not None or self.closed or self._truncation is not None:
            return self.compaction.give_up(plan)
        try:
            return self.compaction.finish(plan, self.segments, self.snapshots, self.limits.file_delete_delay_ms)
        except OSError as error:
            self.fail(error)
            raise self._offline() from error

    def give_up_compaction(self, plan: CompactionPlan) -> RemovalJob:
        """The plan failed: everything stays as it was."""
        return self.compaction.give_up(plan)

    # By time

    def time_lookup(
        self, timestamp: int | None, upper_offset: int | None = None, budget: LookupBudget | None = None
    ) -> TimeLookup:
        """To find the first record below `upper_offset` that is not older than `timestamp`.

        Without a timestamp: the first record with the largest one. It runs on a worker; once it is back it may have
        to be made again (`TimeLookup.is_stale`).
        """
        self._check_online()
        if timestamp is None:
            return LatestLookup(self.segments.list, self.start_offset, budget)
        upper = self.end_offset if upper_offset is None else upper_offset
        return TimeLookup(self.segments.list, self.start_offset, upper, timestamp, budget)

    def find_by_timestamp(self, timestamp: int | None, upper_offset: int | None = None) -> TimedOffset | None:
        """The answer of such a look-up, at once. Waits for the disk."""
        lookup = self.time_lookup(timestamp, upper_offset)
        lookup.run()
        return lookup.finish()

    def max_timestamp(self) -> TimedOffset | None:
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
        if self.closed or self.failed is not None or self.durability.away.syncs or self._truncation is not None:
            # How a sync ends that is under way nobody knows yet, and a second one might miss its failure.
            return None
        active = self.segments.active
        try:
            active.flush_indexes()
            if self.end_offset not in self.snapshots.offsets and self.end_offset > 0:
                self.snapshots.write(self.end_offset, self.producers)
        except OSError:
            # Nothing is lost: the next start makes them again, as after a crash.
            return None
        ticket = self.sync_target()
        if active.aborted.entries() or active.aborted.is_shortened:
            ticket.paths.append(active.aborted.path)
            ticket.folders.add(self.folder)
        return ticket

    def end_close(self, ticket: SyncTicket, error: OSError | None) -> None:
        """The ticket has been run."""
        if error is None:
            self.synced(ticket)
        else:
            self.fail(error, ticket)
        self.abandon()

    def abandon(self) -> None:
        """Let all files go as they are, as a crash would."""
        self.closed = self.durability.away.closed = True
        self.segments.close()
