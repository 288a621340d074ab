"""The audit log on disk: lines in order, files that take turns, a disk that fails."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from millpond.broker.audit.audit import Chapter
from millpond.config.node import node_settings
from millpond.node.audit_file import AuditFile, AuditFiles, open_audit


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_are_kept_in_order_over_lives(tmp_path: Path) -> None:
    for life in range(2):
        file = AuditFile(tmp_path / "audit", 1 << 20, 3)
        for number in range(1_000):
            file(f"{life}-{number}")
        file.close()
    assert lines(tmp_path / "audit" / "audit.jsonl") == [f"{life}-{n}" for life in range(2) for n in range(1_000)]
    assert stat.S_IMODE((tmp_path / "audit" / "audit.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700


def test_files_take_turns_and_the_oldest_goes(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, 1_000, 3)
    for number in range(100):
        file(f"{number:099}")
    file.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.1.jsonl", "audit.2.jsonl", "audit.jsonl"]
    kept = [*lines(tmp_path / "audit.2.jsonl"), *lines(tmp_path / "audit.1.jsonl"), *lines(tmp_path / "audit.jsonl")]
    assert [int(each) for each in kept] == list(range(70, 100))


def test_a_single_file_is_truncated(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, 1_000, 1)
    for number in range(15):
        file(f"{number:099}")
    file.close()
    assert [int(each) for each in lines(tmp_path / "audit.jsonl")] == list(range(10, 15))


def test_a_disk_that_fails_costs_lines_which_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    file = AuditFile(tmp_path, 1 << 20, 3, lambda event, **_: reports.append(event))
    file("before")
    assert file.flush()
    real = os.write
    with monkeypatch.context() as broken:

        def half(descriptor: int, data: bytes) -> int:
            if data.startswith(b"lost"):
                return real(descriptor, data[:2])
            raise OSError(28, "No space left on device")

        broken.setattr(os, "write", half)
        for _ in range(5):
            file("lost")
        assert file.flush()
    file("after")
    file.close()
    assert lines(tmp_path / "audit.jsonl") == ["before", '{"event":"dropped","count":5}', "after"]
    assert reports == ["cannot write the audit log"]
    assert file.dropped_total == 5


def test_a_file_that_cannot_be_made_costs_none_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is free, say, because a stranger has them all: that must not wipe out what is known of him."""
    file = AuditFile(tmp_path, 1_000, 4)
    for number in range(40):
        file(f"{number:099}")
    assert file.flush()
    with monkeypatch.context() as broken:

        def none_left(*_: object) -> int:
            raise OSError(24, "Too many open files")

        broken.setattr(AuditFile, "_open", none_left)
        for _ in range(10):
            file("x" * 99)
            assert file.flush()
    file("after")
    file.close()
    assert lines(tmp_path / "audit.jsonl") == ['{"event":"dropped","count":10}', "after"]
    kept = [line for number in (3, 2, 1) for line in lines(tmp_path / f"audit.{number}.jsonl")]
    assert [int(each) for each in kept] == list(range(10, 40))


def test_settings_say_whether_there_is_one(tmp_path: Path) -> None:
    def made(**texts: str) -> AuditFiles | None:
        names = {name.replace("_", "."): text for name, text in texts.items()}
        return open_audit(node_settings({"data.folder": str(tmp_path / "data"), **names}), lambda *_, **__: None)

    assert made() is None, "their owner is not recorded"
    assert made(audit_log="off") is None
    assert not (tmp_path / "data").exists()
    file = made(audit_log="on")
    assert file is not None
    file(json.dumps({"event": "x"}), Chapter.CHANGES)
    file.close()
    assert lines(tmp_path / "data" / "audit" / "audit.jsonl") == ['{"event": "x"}']


def test_what_was_refused_pushes_out_nothing_that_was_changed(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, 1_000, 3, lambda *_, **__: None)
    files("changed", Chapter.CHANGES)
    for number in range(200):
        files(f"{number:099}", Chapter.ACCESS)
        files(f"{number:099}", Chapter.TOKENS)
    files.close()
    assert lines(tmp_path / "audit.jsonl") == ["changed"]
    kept = sorted(each.name for each in tmp_path.iterdir())
    assert kept == sorted(
        ["audit.jsonl"]
        + [f"audit.{part}.{number}jsonl" for part in ("access", "tokens") for number in ("", "1.", "2.")]
    )


def test_half_a_line_of_a_crash_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_bytes(b'{"event":"one"}\n{"event":"tw')
    file = AuditFile(tmp_path, 1 << 20, 3)
    file('{"event":"three"}')
    file.close()
    assert (tmp_path / "audit.jsonl").read_bytes().splitlines() == [
        b'{"event":"one"}',
        b'{"event":"tw',
        b'{"event":"three"}',
    ]
