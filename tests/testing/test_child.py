"""The program of a child node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.boundary


def test_it_says_its_port_and_ends_when_its_input_ends(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "millpond.testing.child", f"data.folder={tmp_path / 'd'}", "listen=127.0.0.1:0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    word, port = child.stdout.readline().split()
    assert word == b"ready"
    assert int(port) > 0
    child.stdin.close()
    assert child.wait(60) == 1
    child.stdout.close()
