"""Takes and loads metadata snapshots on one node, leader or not.

A node starts from the newest snapshot it can read, leaps to one the leader sends in place of records it has already
deleted, and writes a new one once enough has been applied since the last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from millpond.base.errors import MalformedMessage, Refused
from millpond.broker.data_folder.identity import CannotStart
from millpond.broker.quorum.snapshots import decode_snapshot, encode_snapshot
from millpond.config.node import METADATA_SNAPSHOT_BYTES, METADATA_SNAPSHOT_MS
from millpond.metadata.image import Image
from millpond.metadata.snapshot import records_of
from millpond.quorum.messages import SnapshotId

if TYPE_CHECKING:
    from millpond.base.ports import World
    from millpond.base.settings import Settings
    from millpond.broker.quorum.log import MetadataLog

LEAP_RETRY_MS: Final = 500
FOLD_RETRY_MS: Final = 60_000


class SnapshotKeeper:
    def __init__(self, world: World, settings: Settings) -> None:
        self.is_leaping = False
        """Whether a snapshot that replaces the applied image is being read."""
        self._clock = world.clock
        self._workers = world.workers
        self._settings = settings
        self._is_folding = False
        self._must_fold = False
        self._folded_ms = world.clock.monotonic_ms()

    def newest(self, log: MetadataLog) -> tuple[Image, int] | None:
        """The newest readable snapshot and its end offset. Blocks on the disk."""
        for snapshot in reversed(log.snapshots.ids):
            try:
                return image_of(log.snapshots.read_whole(snapshot)), snapshot.end_offset
            except MalformedMessage as fault:
                # The log starts at the end of the oldest snapshot, so it has the records of the damaged one.
                if snapshot == log.snapshots.ids[0]:
                    raise CannotStart(
                        f"the snapshot {log.snapshots.path(snapshot)} cannot be read: {fault}"
                    ) from fault
        return None

    def leap(self, log: MetadataLog, use: Callable[[Image, SnapshotId], None], again: Callable[[], None]) -> None:
        """Read the snapshot the leader has sent, then call `use`, or `again` after a delay if that failed."""
        self.is_leaping = True
        snapshot = log.snapshots.ids[-1]

        def loaded(image: Image) -> None:
            self.is_leaping = False
            use(image, snapshot)

        def not_loaded(error: Exception) -> None:
            self.is_leaping = False
            # An unreadable file may be readable later; anything else is a bug.
            if not isinstance(error, OSError):
                raise error
            self._clock.call_later(LEAP_RETRY_MS, again)

        self._workers.run(lambda: image_of(log.snapshots.read_whole(snapshot))).then(loaded, not_loaded)

    def demand(self) -> None:
        """Take a snapshot soon: a feature level was lowered, and older nodes cannot read the records before that."""
        self._must_fold = True

    def take_if_due(self, log: MetadataLog, image: Image, applied_offset: int) -> None:
        """Write a snapshot of the image at `applied_offset` if enough was applied since the last one."""
        taken = log.latest_snapshot
        if self._is_folding or log.is_changing or log.log.closed or log.log.failed is not None:
            return
        if applied_offset <= (taken.end_offset if taken else 0):
            return
        now_ms = self._clock.monotonic_ms()
        is_due = self._must_fold or now_ms - self._folded_ms >= self._settings[METADATA_SNAPSHOT_MS]
        if not is_due and log.log.segments.active.size < self._settings[METADATA_SNAPSHOT_BYTES]:
            return
        self._is_folding = True
        self._must_fold = False
        self._folded_ms = now_ms
        snapshot = SnapshotId(applied_offset, log.log.epochs.of(applied_offset - 1))
        copy, wall_ms = image.copy(), self._clock.wall_ms()
        voters = log.voters_at(snapshot.end_offset)

        def end(_: object) -> None:
            self._is_folding = False

        def not_taken(error: Exception) -> None:
            if not isinstance(error, OSError | Refused):
                raise error
            # The disk is full or unavailable, which costs only space: retry later.
            self._clock.call_later(FOLD_RETRY_MS, partial(end, None))

        encode = lambda: encode_snapshot(records_of(copy), wall_ms, voters)  # noqa: E731
        log.take_snapshot(snapshot, encode, self._workers).then(end, not_taken)


def image_of(data: bytes) -> Image:
    """The image of a snapshot. Raises MalformedMessage if it is incomplete."""
    image = Image()
    for record in decode_snapshot(data):
        image.replay(record)
    return image
