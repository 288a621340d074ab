"""Ways to sync: the state of each file before and after a slice; durations are not checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.line import LeftOut
from bench.measure import Plan
from bench.syncs import APPEND_BYTES, SYNCS_MIN, Way

from bench import syncs

SHORT = Plan(slices=2, slice_seconds=1e-6)

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no blocks can be reserved here")


@pytest.mark.parametrize(
    ("way", "size_before", "size_after"),
    [
        (Way.GROWING, 0, 4000),
        (Way.DSYNC, 0, 4000),
        (Way.RESERVED, 200_000, 200_000),
        (Way.OVERWRITTEN, 200_000, 200_000),
    ],
)
def test_a_slice_writes_one_append_after_the_other(
    way: Way, size_before: int, size_after: int, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    syncs._make_ready(path, 200, way)
    assert path.read_bytes() == bytes(size_before)
    result = syncs._slice(path, 200, way, 0.0)
    written = 200 * SYNCS_MIN
    assert path.read_bytes() == b"v" * written + bytes(size_after - written)
    assert result["p50_ms"] > 0


def test_a_slice_ends_where_the_room_does(tmp_path: Path) -> None:
    size = 64 << 10
    syncs._make_ready(tmp_path / "file", size, Way.RESERVED)
    syncs._slice(tmp_path / "file", size, Way.RESERVED, 3600.0)
    assert (tmp_path / "file").stat().st_size == syncs.ROOM_BYTES_MAX


def test_every_size_in_every_way_and_no_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncs, "file_system_of", lambda _: "ext4")
    result = list(syncs.measure_syncs(SHORT, str(tmp_path)))
    assert [(size, way) for size, way, _ in result] == [(size, way) for size in APPEND_BYTES for way in Way]
    assert all({"p50_ms", "p99_ms", "us_per_request", "syncs_per_s"} <= figures.keys() for _, _, figures in result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no folder in memory here")
def test_memory_is_no_disk() -> None:
    with pytest.raises(LeftOut, match="is tmpfs, which no sync makes safe"):
        next(syncs.measure_syncs(SHORT, "/dev/shm"))
