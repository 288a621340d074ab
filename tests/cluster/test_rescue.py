"""Two of three real nodes are lost with their disks, and the cluster goes on from the third."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

from millpond.cli import command
from millpond.testing import Pond, ponds


def rescue(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["cluster", "rescue", *arguments])
    return result.exit_code, result.output


def test_two_folders_are_deleted_and_the_third_goes_on(tmp_path: Path) -> None:
    with ponds(nodes=3, folder=tmp_path) as cluster:
        cluster.create_topic("orders", partitions=3)
        cluster.produce("orders", *(str(number).encode() for number in range(30)))
        folder = str(cluster[1].folder)
        code, said = rescue("--data", folder)
        assert (code, "runs: stop it first" in said) == (1, True), said
        cluster.kill_all()
        for node_id in (2, 3):
            shutil.rmtree(cluster[node_id].folder)
        code, said = rescue("--data", folder, "--json")
        facts = json.loads(said)
        assert (facts["voters_before"], facts["lost"], facts["answering"]) == ([1, 2, 3], [2, 3], [])
        assert {each["fate"] for each in facts["partitions"]} == {"kept"}
        assert 0 < facts["folders"][0]["committed_offset"] <= facts["folders"][0]["end_offset"]
        code, said = rescue("--data", folder, "--act")
        assert (code, "nobody to ask" in said) == (2, True), said
        code, said = rescue("--data", folder, "--yes-lose-data")
        assert code == 0, said
        assert "rescue 1 of the cluster" in said
        cluster.forget_clients()
    with Pond(folder=folder, settings={"node.id": 1}) as alone:
        records = [record.value() for record in alone.consume("orders", 30)]
        assert sorted(int(value or b"") for value in records) == list(range(30))
