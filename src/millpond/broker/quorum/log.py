"""This node's metadata log as the quorum sees it: a partition log plus snapshots.

Changes by the quorum are visible at once, as its port demands. The slow part of truncating the log, or of replacing
it by a snapshot, waits for `persist` and a worker. Nothing is appended before that is done, because the replica
neither fetches nor stands for election until the truncation is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.ids import EpochEnd
from millpond.base.later import Later, done, failed
from millpond.base.ports import Clock, Workers
from millpond.broker.quorum.snapshots import KEPT, SnapshotFiles
from millpond.broker.quorum.voters import VoterSets, voters_records
from millpond.log.checks import trusted_headers
from millpond.log.durability import SyncTicket
from millpond.log.partition_log import PartitionLog
from millpond.log.recovery import LogDamaged
from millpond.quorum.messages import SnapshotId
from millpond.quorum.voters import Voter
from millpond.wire import messages
from millpond.wire import records as wire_records
from millpond.wire.batch import CorruptBatch, walk

T = TypeVar("T")

READ_BYTES: Final = 1 << 20
RETRY_MS: Final = 500
AWAY_POLL_MS: Final = 5
_LEADER_CHANGE_KEY = b"\0\0\0\2"


class MetadataLog:
    """The `QuorumLog` of a real node."""

    def __init__(
        self,
        log: PartitionLog,
        snapshots: SnapshotFiles,
        clock: Clock,
        workers: Workers,
        write_checkpoint: Callable[[], Later[None]],
        founders: tuple[int, ...],
    ) -> None:
        self.log: Final = log
        self.snapshots: Final = snapshots
        self._clock = clock
        self._workers = workers
        self._write_checkpoint = write_checkpoint
        self._founders = founders
        self._voter_sets = VoterSets()
        self._cut: int | None = None
        """Where the log has to be truncated or is being truncated."""
        self._install: tuple[SnapshotId, bytes] | None = None
        self._is_unreadable = False

    # Contents.

    @property
    def is_changing(self) -> bool:
        """Whether a truncation or snapshot is still to be applied to the files; until then no reads or writes."""
        return self._cut is not None or self._install is not None

    @property
    def start_offset(self) -> int:
        return self.end_offset if self._install is not None else int(self.log.start_offset)

    @property
    def end_offset(self) -> int:
        if self._install is not None:
            return self._install[0].end_offset
        end = int(self.log.end_offset)
        return end if self._cut is None else min(end, self._cut)

    @property
    def last_epoch(self) -> int:
        entries = self._entries()
        if entries:
            return entries[-1][0]
        base = self._base
        return 0 if base is None else base.epoch

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        if self._install is not None:
            return self._install[0]
        return self.snapshots.ids[-1] if self.snapshots.ids else None

    @property
    def _base(self) -> SnapshotId | None:
        """The snapshot whose end offset is the log start offset."""
        if self._install is not None:
            return self._install[0]
        start = self.log.start_offset
        return next((each for each in self.snapshots.ids if each.end_offset == start), None)

    def _entries(self) -> list[tuple[int, int]]:
        """Each epoch with its first offset."""
        if self._install is not None:
            return []
        end = self.end_offset
        return [entry for entry in self.log.epochs.entries if entry[1] < end]

    def has_begun(self, epoch: int, committed: int) -> bool:
        """Whether the first record of `epoch` is here, below `committed`."""
        for entry_epoch, start in reversed(self._entries()):
            if entry_epoch <= epoch:
                return entry_epoch == epoch and start < committed
        base = self._base
        return base is not None and base.epoch == epoch and base.end_offset <= committed

    def end_of(self, epoch: int) -> EpochEnd | None:
        end = self.end_offset
        for entry_epoch, start in reversed(self._entries()):
            if entry_epoch <= epoch:
                return EpochEnd(entry_epoch, end)
            end = start
        base = self._base
        return EpochEnd(*reversed(base)) if base is not None and base.epoch <= epoch else None

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        return self._voter_sets.voters

    @property
    def voters_offset(self) -> int:
        return self._voter_sets.offset

    @property
    def voters_before(self) -> tuple[Voter, ...] | None:
        return self._voter_sets.before

    def voters_at(self, end_offset: int) -> tuple[Voter, ...] | None:
        """The voters named by the last voters record below the offset, if any."""
        return self._voter_sets.at(end_offset)

    def read(self, offset: int) -> bytes:
        """Empty if the disk cannot be read; `take_unreadable` then returns True."""
        try:
            return b"" if self.is_changing else self.log.read_batches(offset, READ_BYTES)
        except Refused:
            self._is_unreadable = True
            return b""

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        return self.snapshots.size(snapshot)

    def read_snapshot(self, snapshot: SnapshotId, position: int) -> bytes:
        try:
            return self.snapshots.read(snapshot, position)
        except OSError:
            self._is_unreadable = True
            return b""

    def take_unreadable(self) -> bool:
        """Whether a read has failed since the last call."""
        is_unreadable, self._is_unreadable = self._is_unreadable, False
        return is_unreadable

    # Changes by the quorum.

    def append_leader_change(self, epoch: int, leader_id: int) -> bool:
        voter_ids = self._founders if self.voters is None else [each.node_id for each in self.voters]
        voters = [messages.LeaderChangeMessage.Voter(voter_id=each) for each in voter_ids]
        change = messages.LeaderChangeMessage(version=0, leader_id=leader_id, voters=voters, granting_voters=[])
        record = wire_records.Record(0, self._clock.wall_ms(), _LEADER_CHANGE_KEY, change.encode(0))
        try:
            self.append(wire_records.encode_batch([record], control=True), epoch)
        except Refused:
            return False
        return True

    def append_voters(self, epoch: int, voters: tuple[Voter, ...]) -> bool:
        offset = self.end_offset
        records = voters_records(voters, self._clock.wall_ms(), is_first=self.voters is None)
        try:
            self.append(wire_records.encode_batch(records, control=True), epoch)
        except Refused:
            return False
        self._voter_sets.append(offset, voters)
        return True

    def append(self, batch: bytes, epoch: int) -> None:
        """Append a leader's batch. Raises Refused, with nothing written, if the disk is full."""
        assert not self.is_changing, "append before the truncation is done"
        self.log.append(
            memoryview(bytearray(batch)), leader_epoch=epoch, now_ms=self._clock.wall_ms(), from_client=False
        )

    def append_fetched(self, records: bytes) -> bool:
        assert not self.is_changing, "append before the truncation is done"
        try:
            self.log.append_follower(memoryview(records), now_ms=self._clock.wall_ms())
        except Refused:
            return False
        self._voter_sets.add(records)
        return True

    def truncate_to(self, offset: int) -> None:
        self._cut = min(offset, self.end_offset)
        self._voter_sets.cut(offset)

    def install_snapshot(self, snapshot: SnapshotId, data: bytes) -> bool:
        try:
            trusted_headers(data)
        except Refused:
            return False
        self._install = snapshot, data
        self._voter_sets.restart(data)
        return True

    # Durability.

    def persist(self) -> Later[None]:
        """Ends once the current contents would survive a power cut.

        It fails with OSError otherwise: for good if `log.failed` is set, else it may be retried.
        """
        if self._install is not None:
            return self._restart_from(*self._install).chain(lambda _: self.persist())
        if self._cut is not None:
            return self._cut_back(self._cut).chain(lambda _: self.persist())
        try:
            ticket = self.log.sync_target()
        except OSError as error:
            # The files cannot be opened at the moment (too many open files): nothing is lost.
            return failed(error)
        return (
            self._workers.run(ticket.run)
            .map(lambda _: self.log.synced(ticket))
            .recover(OSError, lambda error: self._sync_failed(error, ticket))
        )

    def _sync_failed(self, error: OSError, ticket: SyncTicket) -> None:
        self.log.fail(error, ticket)
        raise error

    def _cut_back(self, offset: int) -> Later[None]:
        return self._truncate(offset).map(lambda _: self._on_cut(offset))

    def _on_cut(self, offset: int) -> None:
        # A deeper truncation may have been requested meanwhile.
        if self._cut is not None and self._cut >= offset:
            self._cut = None

    def _restart_from(self, snapshot: SnapshotId, data: bytes) -> Later[None]:
        def written(_: None) -> Later[None]:
            self.snapshots.add(snapshot)
            return self._truncate(snapshot.end_offset, is_new_start=True)

        def installed(_: None) -> None:
            self._cut = None
            if self._install is not None and self._install[0] == snapshot:
                self._install = None
            # If this fails, the next start removes the files.
            paths = self.snapshots.drop_before(snapshot.end_offset)
            self._workers.run(partial(self._remove, paths)).recover(OSError, lambda _: None).then(lambda _: None)

        # The snapshot first: a start that finds it without the log continues from here.
        write = lambda: self._workers.run(lambda: self.snapshots.write(snapshot, data))  # noqa: E731
        return self._retry(write).chain(written).map(installed)

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self.log.disk.remove(path)

    def _truncate(self, offset: int, *, is_new_start: bool = False) -> Later[None]:
        if self._is_in_use():
            return self._until_unused().chain(lambda _: self._truncate(offset, is_new_start=is_new_start))
        try:
            truncation = self.log.begin_truncation(offset, is_new_start=is_new_start)
        except Refused as refused:
            if refused.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            # The log cannot be read at the moment and is unchanged: retry.
            return failed(OSError(str(refused)))

        def run(_: None) -> Later[None]:
            return self._workers.run(truncation.run).recover(OSError, failed_with)

        def failed_with(error: OSError) -> None:
            self.log.finish_truncation(truncation, error)
            raise error

        # Without the checkpoint a crash halfway would look like damage.
        return self._retry(self._write_checkpoint).chain(run).map(lambda _: self.log.finish_truncation(truncation))

    def _is_in_use(self) -> bool:
        """Whether a worker is using files of the log, which must not be removed or replaced under it."""
        return bool(self.log.durability.away) and not self.log.closed

    def _until_unused(self) -> Later[None]:
        """Poll until no worker uses the log; a hung disk may take arbitrarily long."""
        later: Later[None] = Later()

        def look() -> None:
            if self._is_in_use():
                self._clock.call_later(AWAY_POLL_MS, look)
            else:
                later.finish(None)

        self._clock.call_later(AWAY_POLL_MS, look)
        return later

    def _retry(self, begin: Callable[[], Later[T]]) -> Later[T]:
        """Retry until it succeeds: a full disk may have free space again."""
        result: Later[T] = Later()

        def tried(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            self._clock.call_later(RETRY_MS, attempt)

        def attempt() -> None:
            if self.log.closed:
                result.fail(OSError("the log was closed"))
            else:
                begin().then(result.finish, tried)

        attempt()
        return result

    # Snapshots.

    def take_snapshot(self, snapshot: SnapshotId, encode: Callable[[], bytes], workers: Workers) -> Later[None]:
        """Write a snapshot, then delete the log before the previous one; after an OSError the next call does it."""

        def written(_: None) -> Later[None]:
            # Meanwhile the leader may have sent a newer one.
            if self.is_changing or self.log.closed or self.log.failed is not None:
                return done(None)
            self.snapshots.add(snapshot)
            return self._drop_old()

        return workers.run(lambda: self.snapshots.write(snapshot, encode())).chain(written)

    def _drop_old(self) -> Later[None]:
        """Drop all but the newest snapshots and the log segments before them."""
        # Close the segment here, so that it can be deleted two snapshots later.
        self.log.roll()
        kept = self.snapshots.ids[-KEPT:]
        if len(kept) < KEPT:
            return done(None)
        start = kept[0].end_offset
        self.log.delete_before(start)
        active = self.log.segments.active
        gone = [each for each in self.log.segments if each.next_offset <= start and each is not active]
        removal = self.log.retire(gone)
        paths = self.snapshots.drop_before(start)
        if not removal.begin():
            return done(None)

        def remove() -> None:
            removal.run()
            self._remove(paths)

        def end(error: OSError | None) -> None:
            removal.end(is_done=error is None)
            if error is not None:
                raise error

        # The log start offset must be durable before any earlier segment is removed.
        removed = self._write_checkpoint().chain(lambda _: self._workers.run(remove))
        return removed.map(lambda _: None).recover(OSError, lambda error: error).map(end)

    def open_snapshots(self) -> None:
        """Open the snapshots at a start. Blocks on the disk.

        Raises LogDamaged unless the log begins at offset 0 or at the end of a snapshot.
        """
        self._open_snapshots()
        try:
            self._read_voters()
        except (MalformedMessage, CorruptBatch, Refused) as fault:
            raise LogDamaged(f"{self.log.folder} does not name the voters: {fault}") from fault

    def _read_voters(self) -> None:
        base = self._base
        if base is not None:
            self._voter_sets.restart(self.snapshots.read_whole(base))
        offset = self.start_offset
        while offset < self.end_offset:
            data = self.log.read_batches(offset, READ_BYTES)
            self._voter_sets.add(data)
            offset = max((int(header.next_offset) for _, header in walk(data)), default=self.end_offset)

    def _open_snapshots(self) -> None:
        log = self.log
        self._remove(self.snapshots.drop_before(log.start_offset))
        if not self.snapshots.ids:
            if log.start_offset > 0:
                raise LogDamaged(f"{log.folder} begins at offset {log.start_offset}, and no snapshot ends there")
            return
        newest = self.snapshots.ids[-1]
        if log.end_offset < newest.end_offset:
            # The previous run was interrupted while it installed a snapshot from the leader.
            truncation = log.begin_truncation(newest.end_offset, is_new_start=True)
            self._write_checkpoint().then(lambda _: None)
            truncation.run()
            log.finish_truncation(truncation)
            self._remove(self.snapshots.drop_before(newest.end_offset))
        elif log.start_offset < self.snapshots.ids[0].end_offset:
            log.delete_before(self.snapshots.ids[0].end_offset)
