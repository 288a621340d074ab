"""Truncating a log at its end, when a leader's log diverges, or restarting it at an offset.

The log is not written to in the meantime. The order matters, or a crash would look like damage: `begin` on the loop
lowers what counts as safe, a checkpoint records that, `run` cuts the files on a worker, `finish` on the loop takes
over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import field

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Disk
from millpond.base.values import dataclass
from millpond.log.failed_sync import NO_DESCRIPTOR, mark_loss
from millpond.log.leftovers import remove_swaps
from millpond.log.limits import LogLimits
from millpond.log.names import BEGUN, CUT, DELETED, EPOCHS_FILE, LOG, SEGMENT_SUFFIXES, offset_name, read_offset_name
from millpond.log.open_files import OpenFiles
from millpond.log.producers import ProducerStates
from millpond.log.recalled_batches import recall_batches
from millpond.log.scan import copy_tail
from millpond.log.segment import Segment
from millpond.log.snapshots import Snapshots


class CutLog(NamedTuple):
    """What is left of the log."""

    kept: list[Segment]
    """Unchanged segments."""
    active: Segment
    producers: ProducerStates
    snapshots: Snapshots


@dataclass(slots=True)
class Truncation:
    """One truncation of one log."""

    disk: Disk
    folder: str
    limits: LogLimits
    offset: int
    segments: list[Segment]
    """All segments of the log."""
    now_ms: int
    is_new_start: bool = False
    """Nothing is left, and the log restarts at `offset`, wherever that is."""
    keeps: bool = False
    """Whether removed batches stay in the folder, in files that are never read."""
    begins_anew: bool = False
    """Nothing is left: files waiting for removal go too."""
    silent: ProducerStates = field(default_factory=ProducerStates)
    """Producers that wrote before the log's start, as no snapshot may list them."""
    result: CutLog | None = None
    has_lost: bool = False
    """Whether a sync has failed: the disk may lack what the page cache has."""

    def run(self) -> None:
        """Cut, and make the result durable. Safe on any thread; OSError leaves a log that must be closed."""
        with self._heard():
            remove_swaps(self.disk, self.folder)
        files = OpenFiles(self.disk)
        below = 0 if self.is_new_start else sum(segment.base_offset < self.offset for segment in self.segments)
        first = self.segments[0]
        if not below and first.base_offset == self.offset and not self.is_new_start:
            below = 1
        epochs = f"{self.folder}/{EPOCHS_FILE}"
        if self.is_new_start and self.disk.exists(epochs):
            # Nothing else shows that they belong to a log that was given up.
            self.disk.remove(epochs)
        # From the end, so that a crash leaves a log without its end, never one without its middle.
        for segment in reversed(self.segments[below:]):
            self._remove(segment)
        if not below:
            self._remove_leftovers()
        kept = self.segments[: max(below - 1, 0)]
        # Without any below, the whole log is above the offset, or is given up.
        active = self._cut(files, self.segments[below - 1]) if below else self._new(files)
        names = self.disk.list(self.folder)
        self._remove_marks(names, active.next_offset + 1)
        snapshots = Snapshots(self.disk, self.folder, names)
        if self.is_new_start:
            snapshots.drop_below(1 << 63)
        snapshots.drop_after(active.next_offset)
        producers = self._replayed(snapshots, [*kept, active])
        with self._heard():
            active.file.sync()
            self.disk.sync_folder(self.folder)
        active.close()
        self.result = CutLog(kept, active, producers, snapshots)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Mark a failed sync at once."""
        try:
            yield
        except OSError as error:
            self.has_lost = error.errno not in NO_DESCRIPTOR
            mark_loss(self.disk, self.folder, error)
            raise

    def _new(self, files: OpenFiles) -> Segment:
        if self.offset:
            # Until it has a batch, recovery would otherwise assume that earlier segments are missing.
            self.disk.open(f"{self.folder}/{offset_name(self.offset, BEGUN)}", create=True).close()
        return Segment.create(files, self.folder, self.offset)

    def _cut(self, files: OpenFiles, last: Segment) -> Segment:
        """The segment without the batches from the offset on."""
        interval = self.limits.index_interval_bytes
        segment = last.reader(last.next_offset, last.size)
        span = segment.locate(self.offset) if self.offset < last.next_offset else None
        segment.close()
        segment = Segment(files, self.folder, last.base_offset, last.next_offset, last.size)
        if span is not None:
            if self.keeps:
                self._keep_tail(segment, span.position)
            segment.cut(span.position, interval)
        else:
            segment.load_tail(interval)
        segment.appended_ms, segment.first_append_ms = last.appended_ms, last.first_append_ms
        return segment

    def _keep_tail(self, segment: Segment, position: int) -> None:
        # The disk may be full, and the log has to follow its leader all the same.
        with contextlib.suppress(OSError):
            copy_tail(
                self.disk, segment.file, position, segment.size, f"{self.folder}/{offset_name(self.offset, CUT)}"
            )

    def _remove_leftovers(self) -> None:
        """Delete retired segments that wait for removal: the log may reuse their names."""
        names = self.disk.list(self.folder)
        for name in reversed(names):
            parts = read_offset_name(name.removesuffix(DELETED))
            if parts is not None and parts[1] in SEGMENT_SUFFIXES:
                self.disk.remove(f"{self.folder}/{name}")
        self._remove_marks(names, 0)
        # A file that came back, even one that startup removed, would count for what is written from here on.
        with self._heard():
            self.disk.sync_folder(self.folder)

    def _remove_marks(self, names: list[str], first: int) -> None:
        """Remove marks of a restart at this offset or a later one."""
        offsets = [entry[0] for name in names if (entry := read_offset_name(name)) is not None and entry[1] == BEGUN]
        for offset in offsets:
            if offset >= first:
                self.disk.remove(f"{self.folder}/{offset_name(offset, BEGUN)}")

    def _remove(self, segment: Segment) -> None:
        for path in reversed(segment.paths()):
            if self.disk.exists(path):
                if self.keeps and segment.size and path.endswith(LOG):
                    self.disk.rename(path, path + CUT)
                else:
                    self.disk.remove(path)

    def _replayed(self, snapshots: Snapshots, segments: list[Segment]) -> ProducerStates:
        """The producers' states from the newest snapshot and the log after it."""
        snapshots.drop_below(segments[0].base_offset)
        snapshot = snapshots.newest(segments[-1].next_offset)
        start, states = snapshot or (segments[0].base_offset, self.silent)
        readers = [segment.reader(segment.next_offset, segment.size) for segment in segments if segment.size]
        try:
            recall_batches(states, readers, start, self.now_ms)
            for reader in readers:
                if reader.next_offset > start:
                    for _ in states.replay(reader.file, reader.batches_from(start), start, self.now_ms):
                        # The index of aborted transactions already has them.
                        continue
        finally:
            for reader in readers:
                reader.close()
        return states
