"""It is said in time, and once a day, that a certificate ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509

from millpond.base.tls import ServerTls, TlsFiles
from millpond.node.certificate_watch import LOOK_MS, CertificateWatch, first_end
from millpond.sim.world.clock import WALL_START_MS
from millpond.sim.world.world import SimWorld

START = datetime.fromtimestamp(WALL_START_MS / 1000, UTC)


def pem(not_after: datetime, name: str = "mill") -> bytes:
    issued = trustme.CA().issue_cert("127.0.0.1", common_name=name, not_before=START, not_after=not_after)
    return issued.cert_chain_pems[0].bytes()


class Harness:
    def __init__(self, path: Path) -> None:
        self.sim = SimWorld(1)
        world = self.sim.start("node")
        self.lines: list[tuple[str, dict[str, Any]]] = []
        tls = ServerTls(TlsFiles(str(path), str(path)))
        self.watch = CertificateWatch(
            world.clock, world.workers, [None, tls], lambda event, **facts: self.lines.append((event, facts))
        )
        self.watch.start()

    def run(self, hours: float) -> list[tuple[str, dict[str, Any]]]:
        """What is said meanwhile."""
        before = len(self.lines)
        self.sim.run_for(int(hours * LOOK_MS))
        return self.lines[before:]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.pem"


def test_soon_then_daily_then_over(path: Path) -> None:
    path.write_bytes(pem(START + timedelta(days=31)))
    harness = Harness(path)
    assert not harness.run(20)
    ((event, facts),) = harness.run(10)
    assert "expires soon" in event
    assert (facts["file"], facts["days"]) == (str(path), 29)
    assert facts["subject"].startswith("CN=mill")
    assert len(harness.run(24)) == 1
    told = harness.run(31 * 24)
    assert [event for event, _ in told if "expired" in event]
    path.write_bytes(pem(START + timedelta(days=400)))
    harness.run(1)
    assert not harness.run(48), "it was renewed"


def test_of_several_in_a_file_the_first_to_end_counts(path: Path) -> None:
    late, soon = START + timedelta(days=900), START + timedelta(days=5)
    path.write_bytes(pem(late) + pem(soon, "chain"))
    end = first_end(str(path))
    assert end is not None
    assert end.at == soon
    assert end.subject.startswith("CN=chain")


@pytest.mark.parametrize("text", [None, "nonsense"])
def test_what_cannot_be_read_is_said_by_others(path: Path, text: str | None) -> None:
    if text is not None:
        path.write_text(text)
    assert first_end(str(path)) is None
    assert not Harness(path).run(2)


def test_years_beyond_2049_are_written_otherwise(path: Path) -> None:
    path.write_bytes(pem(datetime(2055, 1, 2, 3, 4, 5, tzinfo=UTC)))
    end = first_end(str(path))
    assert end is not None
    assert end.at == x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
