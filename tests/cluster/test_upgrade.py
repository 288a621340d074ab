"""From the previous version to this one, node by node and under load; and a rolling restart of all nodes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.admin.features import describe_features, update_features
from millpond.metadata.features import UpgradeType
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError
from millpond.testing import Ponds, ponds
from millpond.testing.ports import free_port
from millpond.testing.process_node import ProcessNode
from support.old_version import old_version
from support.patience import with_time
from support.steady_load import TOPIC, SteadyLoad

MILLPOND = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())")
LEVEL = "metadata.version"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old_version(tmp_path_factory.mktemp("before"))


def final_level(bootstrap: str) -> int:
    with Cluster({"bootstrap.servers": bootstrap}) as remote:
        return {each.name: each.final for each in describe_features(remote)}[LEVEL]


def raise_level(bootstrap: str, level: int, kind: UpgradeType = UpgradeType.UPGRADE) -> None:
    with Cluster({"bootstrap.servers": bootstrap}) as remote:
        update_features(remote, {LEVEL: level}, kind)


def replace_all(cluster: Ponds, source: Path | None) -> None:
    """One after the other, the controller last."""
    for node in sorted(cluster, key=lambda node: node.node_id == cluster.controller):
        cluster.wait_until_in_sync(TOPIC)
        node.stop()
        node.run_version(source)
        node.start()
    cluster.wait_until_in_sync(TOPIC)


@with_time
def test_from_the_version_before_to_this_one_and_back_under_load(before: Path) -> None:
    cluster = ponds(nodes=3)
    for node in cluster:
        node.run_version(before)
    with cluster:
        load = SteadyLoad(cluster.bootstrap)
        load.start()
        cluster[1].stop()
        cluster[1].run_version(None)
        cluster[1].start()
        cluster.wait_until_in_sync(TOPIC)
        with pytest.raises(ClientError, match="it runs an older version"):
            raise_level(cluster.bootstrap, 26)
        assert final_level(cluster.bootstrap) == 25
        replace_all(cluster, None)
        _until_raised(cluster.bootstrap)
        # The previous version could not read what is written from now on.
        cluster[2].restart()
        cluster.wait_until_in_sync(TOPIC)
        raise_level(cluster.bootstrap, 25, UpgradeType.SAFE_DOWNGRADE)
        replace_all(cluster, before)
        report = load.stop()
        journals = [line for node in cluster for line in node.journal]
    assert not [line for line in journals if "BUG" in line or "Traceback" in line]
    report.check()
    print(f"\nto this version and back: {report}")


def _until_raised(bootstrap: str) -> None:
    """A node that an older controller registered reports its supported features to the next one, after a moment."""
    deadline = time.monotonic() + 20
    while final_level(bootstrap) != 26:
        try:
            raise_level(bootstrap, 26)
        except ClientError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ProcessNode]:
    texts = {"data.folder": str(tmp_path / "alone"), "listen": f"127.0.0.1:{free_port()}"}
    node = ProcessNode(texts, lambda *_, **__: None)
    yield node
    node.kill()


@with_time
def test_a_folder_of_one_node_goes_to_this_version_and_back(before: Path, alone: ProcessNode) -> None:
    for source in (before, None, before, None):
        alone.source = source
        port = alone.start()
        process = subprocess.run(
            [*MILLPOND, "topic", "create", f"by-{alone.pid}", "-b", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        alone.stop()
    port = alone.start()
    with Cluster({"bootstrap.servers": f"127.0.0.1:{port}"}) as remote:
        assert len(remote.topics()) == 4
    assert final_level(f"127.0.0.1:{port}") == 25


@with_time
def test_a_rolling_restart_goes_unnoticed_by_clients(tmp_path: Path) -> None:
    up = subprocess.Popen(
        [*MILLPOND, "cluster", "up", "--data", str(tmp_path / "c"), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert up.stdout is not None
        bootstrap = next(line.split()[1] for line in up.stdout if "bootstrap" in line)
        with subprocess.Popen(["cat"], stdin=up.stdout, stdout=subprocess.DEVNULL):
            load = SteadyLoad(bootstrap)
            load.start()
            words = ("cluster", "restart", "--data", str(tmp_path / "c"), "--yes", "-b", bootstrap)
            done = subprocess.run([*MILLPOND, *words], capture_output=True, text=True, check=False, timeout=200)
            report = load.stop()
            up.terminate()
            up.wait(60)
    finally:
        up.kill()
        up.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("restarted in") == 3
    report.check()
    print(f"\nrolling restart: {report}")
