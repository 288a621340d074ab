"""A hundred gigabytes after a crash: what was durable is not read again."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from millpond.log.checkpoints import encode_offsets
from millpond.log.limits import LogLimits
from millpond.log.names import LOG, RECOVERY_FILE, offset_name
from millpond.log.open_files import OpenFiles
from millpond.log.producers import ProducerStates
from millpond.log.segment import Segment
from millpond.log.snapshots import Snapshots
from millpond.node.disk import RealDisk, RealFile
from millpond.wire.batch import patch_offset_and_epoch
from millpond.wire.records import Record, encode_batch

SEGMENTS = 100
SEGMENT_BYTES = 1 << 30
BATCHES_EACH = 16
TIME_MS = 1_700_000_000_000


class CountingFile(RealFile):
    """Counts what is read."""

    read_bytes = 0

    def read_at(self, position: int, length: int) -> bytes:
        data = super().read_at(position, length)
        CountingFile.read_bytes += len(data)
        return data


class CountingDisk(RealDisk):
    def open(self, path: str, *, create: bool = False) -> RealFile:
        return CountingFile(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600))

    def read(self, path: str) -> bytes:
        data = super().read(path)
        CountingFile.read_bytes += len(data)
        return data


def write_sparse_segments(folder: Path, bases: Sequence[int]) -> int:
    """Segments of batches that have a head and otherwise holes, with their indexes; the offset after them."""
    size = SEGMENT_BYTES // BATCHES_EACH
    head = bytearray(encode_batch([Record(0, TIME_MS, None, b"")]))[:61]
    struct.pack_into(">i", head, 8, size - 12)
    for base in bases:
        with open(folder / offset_name(base, LOG), "wb") as file:
            for number in range(BATCHES_EACH):
                patch_offset_and_epoch(head, 0, base + number, 0)
                file.seek(number * size)
                file.write(head)
            file.truncate(SEGMENT_BYTES)
        segment = Segment(OpenFiles(RealDisk()), str(folder), base, base + BATCHES_EACH, SEGMENT_BYTES)
        segment.rebuild_indexes()
        segment.close()
    return bases[-1] + BATCHES_EACH


def test_only_what_came_after_the_last_checkpoint_is_read(make_pond, tmp_path):
    harness = make_pond(disk=RealDisk(), folder=str(tmp_path / "data"), limits=LogLimits())
    store, _ = harness.open()
    store.abandon()
    folder = Path(harness.partition)
    safe = write_sparse_segments(folder, range(0, SEGMENTS * BATCHES_EACH, BATCHES_EACH))
    (folder / offset_name(safe, LOG)).touch()
    # As every log leaves it that begins a new segment.
    Snapshots(RealDisk(), str(folder), []).write(safe, ProducerStates())
    (tmp_path / "data" / RECOVERY_FILE).write_bytes(encode_offsets({harness.tp: safe}))
    store, log = harness.open()
    harness.fill(log, 500)
    harness.sync(log)
    store.checkpoint()
    harness.fill(log, 100, start=500)
    store.abandon()
    harness.disk = CountingDisk()
    CountingFile.read_bytes = 0
    store, log = harness.open()
    assert CountingFile.read_bytes < 16 << 20
    assert (log.start_offset, log.end_offset) == (0, safe + 600)
    assert log.size_bytes > SEGMENTS * SEGMENT_BYTES
    # What was past the checkpoint has been checked, and is there.
    assert [record.value for record in harness.records(log, safe + 500)] == [b"value-%d" % n for n in range(500, 600)]
    # And what was not read can be found.
    found = log.read(BATCHES_EACH * 7 + 3, 1 << 10)
    found.range.file.release()
    assert found.first_offset == BATCHES_EACH * 7 + 3
    store.close()
