"""`millpond cert`: an authority and its certificates, from the command line."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millpond.cli import command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tls"


def run(folder: Path, *words: str) -> Any:
    result = CliRunner().invoke(command, ["cert", *words, "--folder", str(folder)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(run(folder, "list", "--json").output)}


def test_certificates_are_issued_renewed_and_removed(folder: Path) -> None:
    assert "Created an authority" in run(folder, "authority").output
    assert run(folder, "add", "node-1", "--host", "10.0.0.1", "--host", "mill.example").exit_code == 0
    assert run(folder, "add", "alice", "--days", "10").exit_code == 0
    certificates = listed(folder)
    assert list(certificates) == ["ca", "node-1", "alice"]
    assert [each["kind"] for each in certificates.values()] == ["authority", "node", "client"]
    assert certificates["node-1"]["hosts"] == ["10.0.0.1", "mill.example"]
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.glob("[!c]*.pem")} == {0o600}
    table = run(folder, "list").output
    assert "CN=alice" in table
    assert "alice expires in" in table
    # Renewed: another key, the same hosts, a new term.
    assert run(folder, "change", "alice").exit_code == 0
    assert run(folder, "change", "node-1").exit_code == 0
    after = listed(folder)
    assert after["node-1"]["serial"] != certificates["node-1"]["serial"]
    assert after["node-1"]["hosts"] == certificates["node-1"]["hosts"]
    assert after["alice"]["kind"] == "client"
    assert run(folder, "change", "node-1", "--host", "10.0.0.9").exit_code == 0
    assert listed(folder)["node-1"]["hosts"] == ["10.0.0.9"]
    assert "Removed" in run(folder, "remove", "alice", "--yes").output
    assert list(listed(folder)) == ["ca", "node-1"]


def test_no_key_is_ever_shown(folder: Path) -> None:
    run(folder, "authority")
    message = run(folder, "add", "alice").output + run(folder, "show", "alice").output + run(folder, "list").output
    key = (folder / "alice.pem").read_text().splitlines()[1]
    assert key not in message
    assert "fingerprint" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "ca"), "cannot be a certificate's name"),
        (("add", "../../etc"), "cannot be a certificate's name"),
        (("add", "node-1", "--host", "a.example:9092"), "without a port"),
        (("add", "alice"), "The certificate alice exists already"),
        (("change", "alicia"), "did you mean alice?"),
        (("change", "ca"), "would become invalid"),
        (("change", "alice", "--host", "x"), "leave out --host"),
        (("remove", "ca", "--yes"), "cannot be removed"),
        (("remove", "alice"), "add --yes"),
        (("authority",), "would invalidate"),
        (("show", "/dev/null"), "not a certificate in PEM format"),
    ],
)
def test_invalid_requests_are_refused(folder: Path, words: tuple[str, ...], message: str) -> None:
    run(folder, "authority")
    run(folder, "add", "alice")
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    result = run(folder, *words)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_without_an_authority(folder: Path) -> None:
    assert "has no authority" in run(folder, "add", "alice").output
    assert "There are no certificates" in run(folder, "list").output
