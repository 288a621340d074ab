"""Two of three real nodes are lost with their disks; the cluster continues from the third, and grows again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner
from tests.support.patience import with_time

from millpond.admin.backup import back_up
from millpond.admin.restore import restore
from millpond.cli import command
from millpond.cli.times import now_ms
from millpond.node.disk import RealDisk
from millpond.testing import Ponds, ponds


def rescue(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["cluster", "rescue", *arguments])
    return result.exit_code, result.output


def test_two_folders_are_deleted_and_the_third_goes_on(tmp_path: Path) -> None:
    with ponds(nodes=3, folder=tmp_path) as cluster:
        cluster.create_topic("orders", partitions=3)
        cluster.produce("orders", *(str(number).encode() for number in range(30)))
        folder = str(cluster[1].folder)
        code, said = rescue("--data", folder)
        assert (code, "is running: stop it first" in said) == (1, True), said
        cluster.kill_all()
        for node_id in (2, 3):
            shutil.rmtree(cluster[node_id].folder)
        code, said = rescue("--data", folder, "--json")
        facts = json.loads(said)
        assert (facts["voters_before"], facts["lost"], facts["answering"]) == ([1, 2, 3], [2, 3], [])
        assert {each["fate"] for each in facts["partitions"]} == {"kept"}
        assert 0 < facts["folders"][0]["committed_offset"] <= facts["folders"][0]["end_offset"]
        code, said = rescue("--data", folder, "--act")
        assert (code, "no terminal to ask on" in said) == (2, True), said
        code, said = rescue("--data", folder, "--yes-lose-data")
        assert code == 0, said
        assert "rescue 1 of the cluster" in said
        cluster[1].start()
        cluster.forget_clients()
        assert numbers(cluster) == list(range(30))
        for node_id in (2, 3):
            cluster[node_id].start()
        cluster.wait_until_in_sync("orders")
        cluster.produce("orders", b"30")
        assert any("this cluster was rescued" in line for line in cluster[1].journal)
        assert numbers(cluster, 31) == list(range(31))


def numbers(cluster: Ponds, count: int = 30) -> list[int]:
    return sorted(int(record.value or b"") for record in cluster.consume("orders", count, timeout=30))


@with_time
def test_a_whole_cluster_is_restored_from_backups_of_different_moments(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with ponds(nodes=3, folder=tmp_path) as cluster:
        cluster.create_topic("orders", partitions=3)
        for node_id in (1, 2, 3):
            cluster.produce("orders", *(f"{node_id}-{number}".encode() for number in range(10)))
            back_up(cluster[node_id].folder, kept / str(node_id), now_ms)
        cluster.produce("orders", b"after the last one")
        cluster.kill_all()
        folders = []
        for node in cluster:
            shutil.rmtree(node.folder)
            output = (
                CliRunner()
                .invoke(command, ["restore", str(kept / str(node.node_id)), "--data", str(node.folder)])
                .output
            )
            assert "millpond cluster rescue --restored" in output
            assert "Start it with: millpond up" not in output, "that would be refused"
            folders += ["--data", str(node.folder)]
        code, said = rescue(*folders, "--restored", "--yes-lose-data")
        assert code == 0, said
        assert "restored, led by" in said
        cluster.start()
        records = [record.value or b"" for record in cluster.consume("orders", 30, timeout=30)]
        assert sorted(records) == sorted(
            b"%d-%d" % (node_id, number) for node_id in (1, 2, 3) for number in range(10)
        )
        cluster.produce("orders", b"on")
        assert len(cluster.consume("orders", 31)) == 31


@with_time
def test_one_restored_node_of_a_living_cluster_catches_up_before_it_counts(tmp_path: Path) -> None:
    with ponds(nodes=3, folder=tmp_path) as cluster:
        cluster.create_topic("orders")
        cluster.produce("orders", b"before")
        back_up(cluster[2].folder, tmp_path / "kept", now_ms)
        cluster.produce("orders", b"after")
        cluster[2].kill()
        shutil.rmtree(cluster[2].folder)
        restore(tmp_path / "kept", cluster[2].folder)
        cluster[2].start()
        if RealDisk().mark(str(tmp_path)) is not None:
            assert any("the data folder is a copy" in line for line in cluster[2].journal)
        cluster.wait_until_in_sync("orders")
        cluster[1].kill()
        cluster[3].kill()
        cluster[3].start()
        assert [record.value for record in cluster.consume("orders", 2, timeout=30)] == [b"before", b"after"]
