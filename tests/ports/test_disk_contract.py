"""What every disk behind the port promises: one play for the real one and the simulated one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.base.ports import Disk
from millpond.node.disk import RealDisk
from millpond.sim.world.disk import SimDisk


@pytest.fixture(params=["real", "sim"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimDisk(seed=1)


@pytest.fixture
def at(disk: Disk, tmp_path: Path) -> Callable[[str], str]:
    """A path inside a folder that exists."""
    root = str(tmp_path)
    disk.make_folder(root)
    return lambda name: f"{root}/{name}" if name else root


def test_append_goes_to_the_end_in_order(disk: Disk, at: Callable[[str], str]) -> None:
    file = disk.open(at("a"), create=True)
    file.append([b"one", bytearray(b"two"), memoryview(b"xthreex")[1:-1], b""])
    file.append([])
    file.append([b"four"])
    assert file.size() == 15
    assert file.read_at(0, 100) == b"onetwothreefour"
    assert file.path == at("a")
    file.close()
    assert disk.read(at("a")) == b"onetwothreefour"
    again = disk.open(at("a"))
    again.append([b"!"])
    assert disk.size(at("a")) == again.size() == 16


def test_thousands_of_parts_in_one_append(disk: Disk, at: Callable[[str], str]) -> None:
    parts = [b"%d," % number for number in range(5_000)]
    file = disk.open(at("a"), create=True)
    file.append([b"head"])
    file.append(parts)
    assert disk.read(at("a")) == b"head" + b"".join(parts)
    assert file.size() == len(b"head" + b"".join(parts))


def test_read_at_gives_fewer_bytes_only_at_the_end(disk: Disk, at: Callable[[str], str]) -> None:
    file = disk.open(at("a"), create=True)
    file.append([b"0123456789"])
    assert file.read_at(2, 3) == b"234"
    assert file.read_at(8, 10) == b"89"
    assert file.read_at(10, 5) == b""
    assert file.read_at(99, 5) == b""
    assert file.read_at(0, 0) == b""


def test_truncate_then_append(disk: Disk, at: Callable[[str], str]) -> None:
    file = disk.open(at("a"), create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    file.append([b"ab"])
    assert (file.size(), disk.read(at("a"))) == (6, b"0123ab")
    file.truncate(8)
    assert disk.read(at("a")) == b"0123ab\0\0"


def test_retain_keeps_a_closed_and_removed_file_readable(disk: Disk, at: Callable[[str], str]) -> None:
    file = disk.open(at("a"), create=True)
    file.append([b"still here"])
    file.retain()
    file.retain()
    file.close()
    file.close()
    disk.remove(at("a"))
    file.release()
    assert file.read_at(0, 5) == b"still"
    file.release()
    with pytest.raises(OSError):
        file.read_at(0, 5)
    file.close()
    with pytest.raises(AssertionError):
        file.release()


def test_a_closed_file_does_nothing_more(disk: Disk, at: Callable[[str], str]) -> None:
    file = disk.open(at("a"), create=True)
    file.close()
    for attempt in (lambda: file.append([b"x"]), file.sync, lambda: file.truncate(0), lambda: file.read_at(0, 1)):
        with pytest.raises(OSError):
            attempt()


def test_fresh_data_counts_as_cached(disk: Disk, at: Callable[[str], str]) -> None:
    file = disk.open(at("a"), create=True)
    file.append([bytes(100_000)])
    assert file.is_cached(0, 100_000)
    assert file.is_cached(100_000, 0)


def test_what_is_cached_can_be_read_and_never_less_than_was_asked_for(disk: Disk, at: Callable[[str], str]) -> None:
    file = disk.open(at("a"), create=True)
    file.append([b"abcdef"])
    assert file.read_cached(1, 3) == b"bcd"
    assert file.read_cached(0, 6) == b"abcdef"
    assert file.read_cached(4, 3) is None
    assert file.read_cached(9, 1) is None
    file.close()
    with pytest.raises(OSError):
        file.read_cached(0, 1)


def test_missing_things_say_so(disk: Disk, at: Callable[[str], str]) -> None:
    for attempt in (
        lambda: disk.open(at("none")),
        lambda: disk.open(at("no/where"), create=True),
        lambda: disk.read(at("none")),
        lambda: disk.size(at("none")),
        lambda: disk.remove(at("none")),
        lambda: disk.rename(at("none"), at("b")),
        lambda: disk.list(at("none")),
        lambda: disk.remove_folder(at("none")),
        lambda: disk.sync_folder(at("none")),
        lambda: disk.replace(at("no/where"), b""),
        lambda: disk.free_bytes(at("none")),
    ):
        with pytest.raises(FileNotFoundError):
            attempt()
    assert not disk.exists(at("none"))
    assert disk.list(at("")) == []


def test_files_are_not_folders(disk: Disk, at: Callable[[str], str]) -> None:
    disk.open(at("file"), create=True).close()
    disk.make_folder(at("folder/inner"))
    with pytest.raises(NotADirectoryError):
        disk.list(at("file"))
    with pytest.raises(NotADirectoryError):
        disk.open(at("file/x"), create=True)
    with pytest.raises(IsADirectoryError):
        disk.open(at("folder"))
    with pytest.raises(IsADirectoryError):
        disk.read(at("folder"))
    with pytest.raises(FileExistsError):
        disk.make_folder(at("file"))
    with pytest.raises(IsADirectoryError):
        disk.rename(at("file"), at("folder"))
    with pytest.raises(NotADirectoryError):
        disk.rename(at("folder"), at("file"))
    assert not disk.exists(at("file/x"))


def test_folders(disk: Disk, at: Callable[[str], str]) -> None:
    disk.make_folder(at("a/b/c"))
    disk.make_folder(at("a/b/c"))
    for name in ("z", "m", "b2"):
        disk.open(at(f"a/{name}"), create=True).close()
    assert disk.list(at("a")) == ["b", "b2", "m", "z"]
    assert disk.exists(at("a/b/c"))
    disk.rename(at("a"), at("renamed"))
    assert disk.list(at("")) == ["renamed"]
    assert disk.list(at("renamed/b")) == ["c"]
    disk.make_folder(at("full"))
    disk.open(at("full/x"), create=True).close()
    with pytest.raises(OSError):
        disk.rename(at("renamed"), at("full"))
    disk.remove_folder(at("renamed"))
    disk.sync_folder(at(""))
    assert disk.list(at("")) == ["full"]


def test_rename_replaces_and_open_files_follow(disk: Disk, at: Callable[[str], str]) -> None:
    old = disk.open(at("old"), create=True)
    old.append([b"old"])
    new = disk.open(at("new"), create=True)
    new.append([b"new"])
    disk.rename(at("new"), at("old"))
    new.append([b"er"])
    assert disk.list(at("")) == ["old"]
    assert disk.read(at("old")) == b"newer"
    assert old.read_at(0, 10) == b"old"


def test_replace_leaves_exactly_the_new_content(disk: Disk, at: Callable[[str], str]) -> None:
    disk.replace(at("a"), b"first and long")
    disk.replace(at("a"), b"second")
    assert disk.read(at("a")) == b"second"
    assert disk.list(at("")) == ["a"]
    # A leftover of a power cut must not shine through.
    leftover = disk.open(at("a.tmp"), create=True)
    leftover.append([b"x" * 100])
    leftover.close()
    disk.replace(at("a"), b"third")
    assert disk.read(at("a")) == b"third"
    assert disk.list(at("")) == ["a"]


def test_one_lock_at_a_time(disk: Disk, at: Callable[[str], str]) -> None:
    lock = disk.lock(at(".lock"))
    with pytest.raises(BlockingIOError):
        disk.lock(at(".lock"))
    other = disk.lock(at(".other"))
    lock.release()
    lock.release()
    again = disk.lock(at(".lock"))
    with pytest.raises(BlockingIOError):
        disk.lock(at(".lock"))
    again.release()
    other.release()


def test_space(disk: Disk, at: Callable[[str], str]) -> None:
    assert 0 <= disk.free_bytes(at("")) <= disk.total_bytes(at(""))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.binary(max_size=40), max_size=4)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("sync"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 120), st.integers(0, 120))),
    ),
    max_size=20,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_play_reads_like_a_bytearray(tmp_path: Path, steps: list[tuple[str, object]]) -> None:
    model = bytearray()
    worlds: list[Disk] = [RealDisk(), SimDisk()]
    path = f"{tmp_path}/file"
    if os.path.exists(path):
        os.unlink(path)
    worlds[1].make_folder(str(tmp_path))
    files = [disk.open(path, create=True) for disk in worlds]
    for kind, value in steps:
        match kind, value:
            case "append", list(parts):
                model += b"".join(parts)
                for file in files:
                    file.append(parts)
            case "truncate", int(size):
                model = (model + bytes(size))[:size]
                for file in files:
                    file.truncate(size)
            case "sync", _:
                for file in files:
                    file.sync()
            case "reopen", _:
                for file in files:
                    file.close()
                files = [disk.open(path) for disk in worlds]
            case "read", (int(position), int(length)):
                assert [file.read_at(position, length) for file in files] == [model[position : position + length]] * 2
        assert [file.size() for file in files] == [len(model)] * 2
    for disk, file in zip(worlds, files, strict=True):
        file.close()
        assert disk.read(path) == model
