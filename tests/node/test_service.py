"""What a service manager hears, and what happens where there is none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from millpond.node.service import tell_manager


@pytest.mark.parametrize("kind", ["a file", "a name without a file"])
def test_the_manager_receives_each_line(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path if kind == "a file" else f"\0{path}")
        monkeypatch.setenv("NOTIFY_SOCKET", path if kind == "a file" else f"@{path}")
        tell_manager("READY=1", "STATUS=all is well")
        assert manager.recv(1000) == b"READY=1\nSTATUS=all is well"


def test_without_a_manager_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    tell_manager("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    tell_manager("READY=1")


def test_a_manager_that_does_not_read_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for _ in range(10_000):
            tell_manager("READY=1")
