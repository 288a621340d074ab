"""`millpond cluster rescue` on folders that simulated nodes have left: what it says, asks and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.sim.cluster.test_rescue import Rescue

from millpond.cli import command
from millpond.sim.node import DATA_FOLDER
from millpond.sim.world.disk import SimDisk


class Folders:
    """Five nodes, three of which are lost; the folders of 1 and 4 are on a real disk."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.five = Rescue(count=5)
        self.five.create_topics(pond=(1, 2, 3), weir=(5, 4, 3), gone=(3, 5, 2))
        self.five.write(1, "pond", b"a")
        self.five.write(5, "weir", b"b")
        self.five.end(2, 3, 5)
        for node_id in (1, 4):
            for path, data in self.five.nodes[node_id].disk.contents().items():
                if not path.endswith(".lock"):
                    file = self.folder(node_id) / path.removeprefix(f"{DATA_FOLDER}/")
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(data)

    def folder(self, node_id: int) -> Path:
        return self.path / f"node-{node_id}"

    def run(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(command, ["cluster", "rescue", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    def data(self, node_id: int) -> tuple[str, str]:
        return "--data", str(self.folder(node_id))

    def take_back(self, node_id: int) -> None:
        files = [path for path in self.folder(node_id).rglob("*") if path.is_file()]
        contents = {f"{DATA_FOLDER}/{path.relative_to(self.folder(node_id))}": path.read_bytes() for path in files}
        self.five.sim.roll_back(f"node{node_id}", contents)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    # They go from one disk to another, and are no copies for that.
    monkeypatch.setattr(SimDisk, "mark", lambda *_: None)
    return Folders(tmp_path)


def test_what_would_be_done_is_shown_and_nothing_is_changed(folders: Folders) -> None:
    before = {path: path.read_bytes() for path in folders.path.rglob("*") if path.is_file()}
    message = folders.run(*folders.data(1), *folders.data(4))
    assert "voters: 1, 2, 3, 4, 5; 1, 4 of them survived" in message
    assert "nodes 1, 4 become the quorum" in message
    assert "nodes 2, 3, 5 are removed" in message
    assert "2 of 3 partitions have a replica that was in sync" in message
    assert "gone-0" in message
    assert "Nothing was changed. Add --act" in message
    facts = json.loads(folders.run(*folders.data(1), *folders.data(4), "--json"))
    assert {each["topic"]: each["fate"] for each in facts["partitions"]} == {
        "pond": "kept",
        "weir": "kept",
        "gone": "lost",
    }
    after = {path: path.read_bytes() for path in folders.path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_survivors_on_two_machines_carry_out_one_order(folders: Folders) -> None:
    order = str(folders.path / "rescue.order")
    message = folders.run(*folders.data(1), "--survivor", "4", "--yes-lose-data", code=2)
    assert "--order-out FILE" in message
    message = folders.run(
        *folders.data(1), "--survivor", "4", "--start-empty", "gone", "--yes-lose-data", "--order-out", order
    )
    assert f"On node 4: millpond cluster rescue --data DIR --order {order} --act" in message
    assert "Add --act" in folders.run(*folders.data(4), "--order", order)
    assert "already: start the node" in folders.run(*folders.data(1), "--order", order, code=1)
    folders.run(*folders.data(4), "--order", order, "--yes-lose-data")
    for node_id in (1, 4):
        folders.take_back(node_id)
    five = folders.five
    five.start(1, 4)
    assert five.nodes[1].broker.image.rescues == 1
    five.wait(lambda: five.leads(1, "pond") and five.leads(4, "weir"))
    assert (five.values(1, "pond"), five.values(4, "weir")) == ([b"a"], [b"b"])


def test_bad_input_is_a_sentence_and_changes_nothing(folders: Folders) -> None:
    assert "Name the data folder" in folders.run(code=2)
    assert "there is no folder" in folders.run("--data", str(folders.path / "none"), code=1)
    empty = folders.path / "empty"
    empty.mkdir()
    assert "is not the data folder of a node" in folders.run("--data", str(empty), code=1)
    assert "there is no topic lake" in folders.run(*folders.data(1), "--unclean", "lake", code=1)
    assert "--from 4: none of the folders" in folders.run(*folders.data(1), "--from", "4", code=1)
    assert "node 9 is none" in folders.run(*folders.data(1), "--survivor", "9", code=1)
    assert "cannot be read" in folders.run(*folders.data(1), "--order", str(folders.path / "none"), code=1)
    assert "not the order of a rescue" in folders.run(*folders.data(1), "--order", __file__, code=1)
    assert not (folders.folder(1) / "rescue.order").exists()
