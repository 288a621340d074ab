"""Files with secrets are their owner's alone, and a data folder that others could change is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millpond.node.disk import RealDisk
from millpond.node.private_files import (
    OpenToOthers,
    guard_data_folder,
    make_private_folder,
    who_else_writes,
    write_private,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _careless_umask() -> None:
    """Private files must stay private under a permissive umask."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def test_a_private_file_is_never_open(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("what was there before")
    path.chmod(0o666)
    write_private(path, b"better")
    assert path.read_bytes() == b"better"
    assert mode(path) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["secret"], "no draft stays"


def test_a_draft_that_cannot_be_put_in_place_is_removed(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_private(tmp_path / "taken", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


def test_what_a_node_writes_is_for_its_owner(tmp_path: Path) -> None:
    disk = RealDisk()
    folder = tmp_path / "data" / "orders-0"
    disk.make_folder(str(folder))
    disk.open(str(folder / "0.log"), create=True).close()
    disk.replace(str(folder / "meta"), b"x")
    disk.write_aside(str(folder / "checkpoint"), b"y")
    lock = disk.lock(str(folder / ".lock"))
    assert mode(folder) == 0o700
    assert {each.name: mode(each) for each in folder.iterdir()} == {
        "0.log": 0o600,
        "meta": 0o600,
        "checkpoint.spare": 0o600,
        ".lock": 0o600,
    }
    lock.release()


@pytest.mark.parametrize("bits", [0o777, 0o702, 0o733])
def test_a_folder_that_everybody_can_write_to_is_refused(tmp_path: Path, bits: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(OpenToOthers, match="every user of this machine can write to it: close it"):
        guard_data_folder(str(folder), lambda *_, **__: None)
    assert mode(folder) == bits, "nothing was changed"


def test_also_one_above_it_and_one_behind_a_link(tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "data").mkdir(parents=True)
    (above / "data").chmod(0o700)
    above.chmod(0o777)
    assert who_else_writes(above / "data") == f"every user of this machine can write to {above}"
    assert who_else_writes(above / "yet" / "to" / "come") == f"every user of this machine can write to {above}"
    link = tmp_path / "link"
    link.symlink_to(above / "data")
    assert who_else_writes(link) == f"every user of this machine can write to {above}"
    # The link itself, and one on the way, in a folder where anybody could put another in its place.
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (above / "link").symlink_to(own)
    (tmp_path / "by-two").symlink_to(above / "link")
    (tmp_path / "relative").symlink_to("above/../above/link")
    for way in (above / "link", tmp_path / "by-two", tmp_path / "relative", tmp_path / "by-two" / "deeper"):
        assert who_else_writes(way) == f"every user of this machine can write to {above}", way
    assert who_else_writes(own) is None
    (tmp_path / "round").symlink_to("round")
    assert who_else_writes(tmp_path / "round" / "and-round") is None, "a start says that it cannot be used"
    # As in /tmp: no user can rename the files of another.
    above.chmod(0o1777)
    assert who_else_writes(above / "data") is None


def test_a_group_of_others_may_not_write_and_an_own_one_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o770)
    number = folder.stat().st_gid
    own = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(pwd, "getpwall", list)
    for members, expected in (([own], None), ([], None), ([own, "mallory"], "the group staff can write to it")):
        monkeypatch.setattr(
            grp, "getgrgid", lambda _, members=members: grp.struct_group(("staff", "x", number, members))
        )
        assert who_else_writes(folder) == expected


def test_a_folder_that_others_can_look_into_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    notes: list[dict[str, object]] = []
    guard_data_folder(str(folder), lambda _, **facts: notes.append(facts))
    assert mode(folder) == 0o700
    assert notes == [{"folder": folder, "before": "755"}]
    # What is open to a group alone was meant so.
    folder.chmod(0o750)
    guard_data_folder(str(folder), lambda _, **facts: notes.append(facts))
    assert mode(folder) == 0o750
    assert len(notes) == 1


def test_private_folders_are_made_once(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700
