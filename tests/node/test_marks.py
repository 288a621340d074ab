"""A real disk tells a folder from its copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millpond.node.disk import RealDisk


def test_a_copy_has_another_mark_and_a_move_has_not(tmp_path: Path) -> None:
    disk, here, there = RealDisk(), tmp_path / "here", tmp_path / "there"
    here.mkdir()
    mark = disk.mark(str(here))
    if mark is None:
        pytest.skip("this file system does not tell")
    (here / "file").write_bytes(b"grows")
    assert disk.mark(str(here)) == mark
    shutil.copytree(here, there)
    assert disk.mark(str(there)) != mark
    here.rename(tmp_path / "elsewhere")
    assert disk.mark(str(tmp_path / "elsewhere")) == mark


def test_without_support_there_is_no_mark() -> None:
    assert RealDisk().mark("/proc") is None
