"""A process that is loaded and waits: it becomes what it is told, and goes when nobody needs it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from millpond.cli.cluster.spare import Spare


@pytest.fixture
def spare() -> Spare:
    made = Spare()
    made.prepare()
    return made


def test_a_spare_runs_a_command_once(spare: Spare) -> None:
    process = spare.take(["--version"])
    assert process is not None
    assert process.communicate(timeout=30)[0].startswith(b"Millpond ")
    assert spare.take(["--version"]) is None
    spare.close()


def test_a_dead_spare_is_replaced(spare: Spare) -> None:
    assert spare._process is not None
    spare._process.kill()
    spare._process.wait()
    assert spare.take(["--version"]) is None
    spare.prepare()
    spare.close()


def test_a_spare_ends_with_its_parent(spare: Spare) -> None:
    process = spare._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdin = None
    spare.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{process.pid}").exists()
