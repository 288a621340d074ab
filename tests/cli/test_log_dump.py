"""Looking into the files of a data folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millpond.wire.records import Record, encode_batch


@pytest.fixture(scope="module")
def folder(quick: Any, node: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a partition with three batches, and of the files beside it."""
    quick.create("dumped", index_interval_bytes="0")
    writer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True, "log_level": 0})
    for pairs in (("a1", "b2"), ("c3",), ("d4",)):
        for key, value in pairs:
            writer.produce("dumped", value, key, headers={"h": b"v"})
        assert writer.flush(60) == 0
    copy = tmp_path_factory.mktemp("dump") / "dumped-0"
    shutil.copytree(node.data / "dumped-0", copy)
    return copy


@pytest.fixture
def segment(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(folder / "00000000000000000000.log", tmp_path))


def rows(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines if line.split()[0].isdigit() and ("ok" in line or "BAD" in line)]


@pytest.mark.smoke
def test_batches_are_rows(millpond: Any, segment: Path) -> None:
    result = millpond.succeeds("log", "dump", str(segment))
    matches = rows(result.lines)
    assert [row[1:3] for row in matches] == [["0", "2"], ["2", "1"], ["3", "1"]]
    assert matches[0][0] == "0"
    assert sum(int(row[3]) for row in matches) == segment.stat().st_size
    assert all(row[7] == "ok" for row in matches)
    assert all("producer" in row for row in matches)
    assert result.lines[-1] == "3 batches, 4 records, offsets 0 to 3"
    assert max(map(len, result.lines)) <= 110


def test_records_are_shown(millpond: Any, segment: Path) -> None:
    result = millpond("log", "dump", str(segment), "--records")
    shown = [line.split("Z  ")[1] for line in result.lines if "Z  " in line]
    assert shown == ["a = 1  [h=v]", "b = 2  [h=v]", "c = 3  [h=v]", "d = 4  [h=v]"]


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_torn_tail_is_reported_with_its_position(millpond: Any, segment: Path, cut: int) -> None:
    last = int(rows(millpond("log", "dump", str(segment)).lines)[-1][0])
    data = segment.read_bytes()
    segment.write_bytes(data[:-cut])
    result = millpond("log", "dump", str(segment))
    assert result.code == 1
    assert result.lines[-1] == "2 batches, 3 records, offsets 0 to 2"
    assert f"is torn at byte {last}: " in result.err


def test_a_flipped_bit_is_reported_and_the_rest_is_shown(millpond: Any, segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[64] ^= 1
    segment.write_bytes(data)
    result = millpond("log", "dump", str(segment))
    assert result.code == 1
    assert [row[7] for row in rows(result.lines)] == ["BAD", "ok", "ok"]
    assert "has 1 faults" in result.err


def test_deep_finds_records_that_a_right_crc_hides(millpond: Any, tmp_path: Path) -> None:
    good = encode_batch([Record(0, 5, b"k", b"v"), Record(1, 5, b"k", None)])
    wrong = bytearray(encode_batch([Record(2, 5, b"k", b"v")], base_offset=2))
    wrong[61] += 40  # the record claims to be longer than its batch
    from crc32c import crc32c

    wrong[17:21] = crc32c(bytes(wrong[21:])).to_bytes(4, "big")
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(good + bytes(wrong))
    millpond.succeeds("log", "dump", str(path))
    result = millpond("log", "dump", str(path), "--deep")
    assert result.code == 1
    assert "the records cannot be read" in result.out


def test_control_and_transactional_batches_are_marked(millpond: Any, tmp_path: Path) -> None:
    marker = Record(1, 5, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        encode_batch([Record(0, 5, None, b"v")], producer_id=7, producer_epoch=1, base_sequence=4, transactional=True)
        + encode_batch([marker], base_offset=1, producer_id=7, producer_epoch=1, transactional=True, control=True)
    )
    result = millpond.succeeds("log", "dump", str(path), "--records")
    assert "transactional · producer 7/1 seq 4" in result.out
    assert "control · transactional" in result.out
    assert "control: commit" in result.out


def test_the_clusters_own_log_is_readable(millpond: Any, node: Any) -> None:
    result = millpond(
        "log", "dump", str(node.data / "__cluster_metadata-0" / "00000000000000000000.log"), "--records"
    )
    assert "RegisterBrokerRecord(broker_id=1" in result.out


def test_the_files_beside_a_segment(millpond: Any, start_node: Callable[..., Any]) -> None:
    own = start_node()
    millpond("topic", "create", "t", "-b", own.address)
    writer = Producer({"bootstrap.servers": own.address, "enable.idempotence": True, "log_level": 0})
    first_ms = time.time_ns() // 1_000_000
    for place in range(3):
        # Times of their own: of records of one millisecond the time index names the first.
        writer.produce("t", "x", timestamp=first_ms + place)
        assert writer.flush(60) == 0
    own.stop()
    index = millpond.succeeds("log", "dump", str(own.data / "t-0" / "00000000000000000000.index"))
    assert index.lines[0].split() == ["Last", "offset", "Batch", "starts", "at", "byte"]
    times = millpond("log", "dump", str(own.data / "t-0" / "00000000000000000000.timeindex"))
    assert times.lines[-2].split()[2] == "2"
    (snapshot,) = (own.data / "t-0").glob("*3.snapshot")
    producers = millpond("log", "dump", str(snapshot))
    assert producers.lines[1].split()[1:4] == ["0", "2", "2"]
    epochs = millpond("log", "dump", str(own.data / "t-0" / "leader-epoch-checkpoint"))
    assert epochs.lines[1].split() == ["0", "0"]
    points = millpond("log", "dump", str(own.data / "recovery-point-offset-checkpoint"))
    assert ["t", "0", "3"] in [line.split() for line in points.lines]
    assert millpond("log", "dump", str(own.data / "t-0" / "partition.metadata")).out.startswith("topic id  ")


def test_damaged_small_files_are_reported(millpond: Any, tmp_path: Path) -> None:
    for name, data, message in [
        ("00000000000000000000.snapshot", b"\x00\x01junk", "The snapshot is damaged"),
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n", "The checkpoint is damaged"),
        ("00000000000000000000.index", b"\x00\x00\x00\x05\x00\x00\x00\x05" * 2, "entry 1 does not increase"),
        ("00000000000000000000.timeindex", b"\x00" * 7, "7 bytes at the end are not a complete entry"),
        ("notes.txt", b"", "cannot be shown"),
    ]:
        (tmp_path / name).write_bytes(data)
        millpond.fails("log", "dump", str(tmp_path / name), error=message)
    assert millpond("log", "dump", "no-such-file.log").code == 2
