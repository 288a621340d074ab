"""The campaigns' disks fail on request, and only then."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster_disks import Disks

SYNC = "import os, sys\nfor path in sys.argv[1:]: os.fdatasync(os.open(path, os.O_RDWR | os.O_CREAT))"


def test_a_disk_is_full_until_there_is_room_again(tmp_path: Path) -> None:
    with Disks(tmp_path, 2).in_use() as disks:
        if not disks.can_fill:
            pytest.skip(disks.reasons["a full disk"])
        mine, other = tmp_path / "node-1" / "log", tmp_path / "node-2" / "log"
        disks.fill(1)
        with pytest.raises(OSError, match="No space") as fault:
            mine.write_bytes(bytes(5000))
        assert fault.value.errno == errno.ENOSPC
        other.write_bytes(bytes(5000))
        disks.make_room(1)
        mine.write_bytes(bytes(5000))
    assert not mine.exists(), "it is no longer mounted"


def test_syncs_of_one_node_fail(tmp_path: Path) -> None:
    with Disks(tmp_path, 2).in_use() as disks:
        if not disks.can_spoil_syncs:
            pytest.skip(disks.reasons["bad syncs"])

        def sync(node_id: int) -> str:
            words = [sys.executable, "-c", SYNC, str(tmp_path / f"node-{node_id}" / "log")]
            return subprocess.run(words, capture_output=True, text=True, check=False).stderr

        with disks.bad_syncs(1, "fail"):
            assert "Input/output error" in sync(1)
            assert sync(2) == ""
        assert sync(1) == ""
