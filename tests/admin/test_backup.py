"""A node's folder is copied while it runs, and put back; what is interrupted goes on, what is damaged is told."""

from __future__ import annotations

import errno
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from millpond.admin import backup as backups
from millpond.admin import restore as restores
from millpond.admin.backup import MANIFEST, PARTIAL, STORED, BackupFault, back_up, only_one, read_manifest
from millpond.admin.restore import restore, verify
from millpond.cli import command
from millpond.node.signals import stop_signals
from millpond.remote.cluster import Cluster
from millpond.testing import Pond
from millpond.wire import messages as m

MOMENT = 1_700_000_000_000


def now_ms() -> int:
    return MOMENT


VALUES = [b"%d" % number * 500 for number in range(50)]


def fill(pond: Pond) -> None:
    """Several segments."""
    for at in range(0, len(VALUES), 5):
        pond.produce("orders", *VALUES[at : at + 5])


def values(pond: Pond, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in pond.consume(topic, count)]


def test_a_running_node_is_copied_and_the_copy_starts(tmp_path: Path) -> None:
    data, kept, again = tmp_path / "data", tmp_path / "kept", tmp_path / "again"
    with Pond(folder=data, settings={"log.segment.bytes": 16384}) as pond:
        pond.create_topic("orders")
        fill(pond)
        assert len(pond.consume("orders", 5, group="readers")) == 5
        first = back_up(data, kept, now_ms)
        assert first.copied_bytes == first.manifest.size > 5000
        pond.produce("orders", b"later")
        second = back_up(data, kept, now_ms)
        assert second.manifest.size > first.manifest.size
        assert second.copied_bytes < second.manifest.size / 2, "closed segments are not copied again"
    assert verify(kept)[1] == []
    stored = {str(path.relative_to(kept / STORED)) for path in (kept / STORED).rglob("*") if path.is_file()}
    assert stored == {each.name for each in second.manifest.files}, "what only the first one needed is gone"
    assert restore(kept, again) == read_manifest(kept)
    with Pond(folder=again) as pond:
        assert values(pond, "orders", 51) == [*VALUES, b"later"]
        # What the group had committed is there, too.
        assert pond.consume("orders", 1, group="readers")[0].offset == 5
        pond.produce("orders", b"on")
        assert pond.consume("orders", 52)[-1].value == b"on"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a node that has been stopped."""
    folder = tmp_path / "data"
    with Pond(folder=folder, settings={"log.segment.bytes": 16384}) as pond:
        pond.create_topic("orders")
        fill(pond)
    return folder


def stop_after(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    real, left = backups.write_checked, [files]

    def write(path: Path, *names: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, *names)

    monkeypatch.setattr(backups, "write_checked", write)
    monkeypatch.setattr(restores, "write_checked", write)


def test_what_is_interrupted_goes_on_and_the_one_before_stays(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, again = tmp_path / "kept", tmp_path / "again"
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(OSError, match="No space"):
            back_up(data, kept, now_ms)
    with pytest.raises(BackupFault, match="was interrupted: run it again"):
        restore(kept, again)
    ended = back_up(data, kept, now_ms)
    assert 0 < ended.copied_bytes < ended.manifest.size, "four files were there"
    assert not (kept / PARTIAL).exists()
    with Pond(folder=data) as pond:
        pond.produce("orders", b"more")
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(OSError, match="No space"):
            back_up(data, kept, now_ms)
    assert verify(kept) == (ended.manifest, []), "the one before is whole"
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(OSError, match="No space"):
            restore(kept, again)
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    result = CliRunner().invoke(command, ["up", "--data", str(again), "--listen", "127.0.0.1:0"])
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "a node that could not start blocks no signals"
    for number, handler in handlers.items():
        assert signal.getsignal(number) is not signal.SIG_IGN
        # The command line took them for itself.
        signal.signal(number, handler)
    assert result.exit_code == 1, result.output
    assert "a backup was being restored" in result.output
    restore(kept, again)
    with Pond(folder=again) as pond:
        assert len(values(pond, "orders", 50)) == 50


def test_a_damaged_backup_is_reported_and_not_restored(data: Path, tmp_path: Path) -> None:
    kept, again = tmp_path / "kept", tmp_path / "again"
    manifest = back_up(data, kept, now_ms).manifest
    one = next(each for each in manifest.files if each.path.startswith("orders-0/") and each.size > 100)
    path = kept / STORED / one.name
    rotten = bytearray(path.read_bytes())
    rotten[70] ^= 1
    path.write_bytes(rotten)
    assert verify(kept)[1] == [f"{one.path}: differs from what was stored (wrong checksum)"]
    with pytest.raises(BackupFault, match="in the backup is damaged or missing"):
        restore(kept, again)
    path.unlink()
    assert verify(kept)[1] == [f"{one.path}: is missing"]
    result = CliRunner().invoke(command, ["restore", str(kept), "--verify"])
    assert (result.exit_code, "is damaged: 1 of its files" in result.output) == (1, True), result.output
    text = (kept / MANIFEST).read_bytes().replace(b"orders", b"0rders")
    (kept / MANIFEST).write_bytes(text)
    with pytest.raises(BackupFault, match="damaged"):
        verify(kept)


def test_the_next_backup_heals_what_has_rotted(data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    back_up(data, kept, now_ms)
    logs = sorted(path for path in (kept / STORED / "orders-0").iterdir() if ".log." in path.name)
    for path in (logs[0], logs[-1]):
        rotten = bytearray(path.read_bytes())
        rotten[100] ^= 1
        path.write_bytes(rotten)
    assert len(verify(kept)[1]) == 2
    assert back_up(data, kept, now_ms, checks_stored=False).copied_files == 0
    assert len(verify(kept)[1]) == 2
    healed = back_up(data, kept, now_ms)
    assert healed.copied_files == 2
    assert verify(kept)[1] == []
    assert back_up(data, kept, now_ms).copied_files == 0


def test_a_damaged_segment_is_copied_unchanged_and_reported(data: Path, tmp_path: Path) -> None:
    segment = next(iter(sorted((data / "orders-0").glob("*.log"))))
    rotten = bytearray(segment.read_bytes())
    rotten[100] ^= 1
    segment.write_bytes(rotten)
    result = CliRunner().invoke(command, ["backup", str(tmp_path / "kept"), "--data", str(data)])
    assert result.exit_code == 1
    assert "damaged in the data folder" in result.output
    (damaged,) = read_manifest(tmp_path / "kept").damaged
    assert damaged.path == f"orders-0/{segment.name}"


def test_wrong_folders_are_refused_and_nothing_is_changed(data: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(command, list(arguments))
        assert result.exit_code == 1, result.output
        return result.output

    kept, other = str(tmp_path / "kept"), str(tmp_path / "other")
    assert "There is no data folder" in run("backup", kept, "--data", other)
    assert "is not the data folder of a node, but holds some (data)" in run("backup", kept, "--data", str(tmp_path))
    for inside in (data, data / "orders-1"):
        assert "is in the data folder itself" in run("backup", str(inside), "--data", str(data))
    assert not (data / "orders-1").exists()
    assert "holds something other than a backup" in run("backup", str(tmp_path), "--data", str(data))
    assert "holds no backup" in run("restore", other, "--data", kept)
    back_up(data, tmp_path / "kept", now_ms)
    assert "is not empty" in run("restore", kept, "--data", str(data))
    with Pond(folder=tmp_path / "other") as pond:
        pond.create_topic("lake")
    assert "holds the backup of node 1" in run("backup", kept, "--data", other)
    shown = CliRunner().invoke(command, ["backup", kept, "--data", str(data), "--json"])
    assert json.loads(shown.output)["copied_bytes"] == 0, "nothing has changed since"


def test_a_topic_that_is_made_meanwhile_is_there_with_its_records_or_not_at_all(tmp_path: Path) -> None:
    data, kept, again = tmp_path / "data", tmp_path / "kept", tmp_path / "again"
    with Pond(folder=data) as pond:
        made = []

        def make(_: int) -> None:
            if not made:
                made.append(pond.create_topic("late"))
                pond.produce("late", b"one")

        back_up(data, kept, now_ms, make)
        assert made
    restore(kept, again)
    with Pond(folder=again) as pond:
        assert values(pond, "late", 1) == [b"one"], "the metadata was copied after it was made"


def test_one_backup_at_a_time_and_one_restore(data: Path, tmp_path: Path) -> None:
    kept, again = tmp_path / "kept", tmp_path / "again"
    calls = []

    def ask(_: int) -> None:
        with pytest.raises(BackupFault, match=r"another backup into .* is under way"):
            back_up(data, kept, now_ms)
        calls.append(True)

    back_up(data, kept, now_ms, ask)
    again.mkdir()
    with only_one(again, "there is one"), pytest.raises(BackupFault, match="another restore into"):
        restore(kept, again)
    assert calls
    restore(kept, again)


def test_a_log_that_loses_its_start_is_not_read_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = backups.sound_end

    def sound_end(disk: Any, path: str, limit: int | None) -> Any:
        read.append(path)
        return real(disk, path, limit)

    monkeypatch.setattr(backups, "sound_end", sound_end)
    first, *others = sorted((data / "orders-0").glob("*.log"))

    def expire(_: int) -> None:
        if str(others[-1]) in read:
            first.unlink(missing_ok=True)

    back_up(data, tmp_path / "kept", now_ms, expire)
    assert not first.exists()
    assert len(others) > 1
    assert len(read) == len(set(read)), "what was copied and has not changed is known"


def test_a_restored_node_gives_no_epoch_and_no_producer_id_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that lives through it has seen records, at these offsets, that are none any more."""
    data, kept, again = tmp_path / "data", tmp_path / "kept", tmp_path / "again"
    with Pond(folder=data) as pond:
        pond.create_topic("orders")
        pond.produce("orders", b"kept")
        back_up(data, kept, now_ms)
    with monkeypatch.context() as patch:

        def interrupt(*_: object) -> None:
            raise OSError(errno.EIO, "the power is gone")

        patch.setattr(restores, "carry_out", interrupt)
        with pytest.raises(OSError, match="power"):
            restore(kept, again)
    restore(kept, again)
    with Pond(folder=again) as pond:
        pond.produce("orders", b"new")
        consumer = pond.consumer("readers")
        consumer.assign([TopicPartition("orders", 0, 0)])
        epochs = [message.leader_epoch() for message in consumer.consume(2, 20)]
        consumer.close()
        assert epochs[0] == 0
        assert epochs[1] > 1000
        with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
            answer = cluster.any().ask(
                m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), m.InitProducerIdResponse
            )
        assert answer.producer_id >= 1_000_000
