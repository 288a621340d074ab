"""Applies committed metadata to this node's image, some batches per turn of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millpond.base.later import Later
from millpond.broker.data_folder.identity import CannotJoin, CannotStart
from millpond.broker.quorum.committed_batches import CommittedBatches, MetadataBatch
from millpond.metadata.features import METADATA_VERSION, Supported, metadata_version, unsupported
from millpond.metadata.image import Image
from millpond.metadata.records import FeatureLevelRecord
from millpond.metadata.snapshot import records_between

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.broker.quorum.host import QuorumHost, StartWorkers
    from millpond.broker.quorum.log import MetadataLog
    from millpond.broker.quorum.snapshot_keeper import SnapshotKeeper
    from millpond.quorum.messages import SnapshotId

TURN_MS: Final = 5
"""Time limit for applying records in one turn of the event loop; at least one batch is applied."""

READ_RETRY_MS: Final = 100


class ImageApplier:
    def __init__(
        self,
        *,
        clock: Clock,
        supported: Supported,
        workers: StartWorkers,
        snapshots: SnapshotKeeper,
        on_applied: Callable[[MetadataBatch], None],
        again: Callable[[], None],
    ) -> None:
        """`on_applied` is called after each batch; `again` continues in a later turn of the event loop."""
        self.image: Final = Image()
        """The committed metadata as applied here. Always the same object."""
        self.offset = 0
        """Everything below this offset is in `image`."""
        self.outdated: Later[CannotJoin] = Later()
        """Ends when the cluster uses features that this version does not support. Nothing more is applied then."""
        self.batches: Final = CommittedBatches(
            supported[METADATA_VERSION].newest, on_unreadable=self._read_later, on_unknown=self._on_unsupported
        )
        self._clock = clock
        self._supported = supported
        self._workers = workers
        self._snapshots = snapshots
        self._on_applied = on_applied
        self._again = again
        self._is_applying = False
        self._is_scheduled = False
        self._is_outdated = False

    def load_snapshot(self, log: MetadataLog) -> None:
        """Start from the newest readable snapshot, if there is one. Blocks on disk I/O."""
        snapshot = self._snapshots.newest(log)
        if snapshot is not None:
            image, end_offset = snapshot
            self._check_levels(image)
            self.image.become(image)
            self.offset = end_offset

    def apply(self, host: QuorumHost, upper: int | None = None) -> None:
        """Replay committed records, some per turn of the event loop; then write a snapshot if one is due."""
        if self._is_applying or self._is_scheduled:
            return
        self._is_applying = True
        until_ms = self._clock.monotonic_ms() + TURN_MS

        def is_late() -> bool:
            return self._clock.monotonic_ms() > until_ms and not self._workers.is_inline

        try:
            while self.offset < self._upper_offset(host, upper) and not self._is_scheduled:
                upper_offset = self._upper_offset(host, upper)
                for batch in self.batches.next(host.log.log, self.offset, upper_offset, is_late):
                    if batch is not None:
                        self._take(batch)
                    if batch is None or is_late():
                        self._is_scheduled = True
                        self._clock.call_soon(self._go_on)
                        break
        finally:
            self._is_applying = False
        log = host.log
        if self.offset < log.start_offset and not log.is_changing and not self._snapshots.is_leaping:
            self._snapshots.leap(log, self._leap, again=self._again)
        else:
            self._snapshots.take_if_due(log, self.image, self.offset)

    def _go_on(self) -> None:
        self._is_scheduled = False
        self._again()

    def _read_later(self) -> None:
        """The log cannot be read for now: retry later."""
        self._is_scheduled = True
        self._clock.call_later(READ_RETRY_MS, self._go_on)

    def _upper_offset(self, host: QuorumHost, upper: int | None) -> int:
        log = host.log
        is_leaping = self._snapshots.is_leaping
        if log.is_changing or is_leaping or self._is_outdated or self.offset < log.start_offset:
            return self.offset
        if log.log.closed and not self.batches.has_own:
            return self.offset
        return min(host.high_watermark, log.end_offset) if upper is None else upper

    def _take(self, batch: MetadataBatch, *, is_replayed: bool = False) -> None:
        level = metadata_version(self.image)
        if not is_replayed:
            self.image.replay_all(batch.records)
        self.offset = batch.end_offset
        if any(isinstance(each, FeatureLevelRecord) for each in batch.records):
            self._check_levels(self.image)
            if metadata_version(self.image) < level:
                self._snapshots.demand()
        self._on_applied(batch)

    def _leap(self, image: Image, snapshot: SnapshotId) -> None:
        """Continue from a leader's snapshot: its log no longer has the records that the snapshot covers."""
        self._check_levels(image)
        changes = tuple(records_between(self.image, image))
        self.image.become(image)
        self._take(MetadataBatch(self.offset, snapshot.end_offset, changes), is_replayed=True)
        self._again()

    def _check_levels(self, image: Image) -> None:
        """Check that this version supports the cluster's features: otherwise it would misread later records."""
        lacks = unsupported(image.features, self._supported)
        if lacks is not None:
            self._on_unsupported(
                f"this program is of another version than the data: they are at {lacks}. Start the version that "
                "wrote them, or lower the level with that one first (millpond cluster downgrade)"
            )

    def _on_unsupported(self, why: str) -> None:
        """This version cannot read later records: a starting node fails, a running one has to stop."""
        if self._workers.is_inline:
            raise CannotStart(why)
        self._is_outdated = True
        self.outdated.finish(CannotJoin(why))
