"""A node after kill -9, and two nodes on one folder."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode
from support.node import Node, NodeEnded
from support.raw import Raw, batch

LOG = "00000000000000000000.log"
CLEAN_MARKER = ".kafka_cleanshutdown"


@pytest.fixture
def crashed(make_node):
    """A node that was killed with three batches of two records in one partition."""
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("torn")
        for number in range(3):
            raw.produce("torn", 0, batch(b"%d-a" % number, b"%d-b" % number))
    node.kill9()
    return node


@pytest.mark.smoke
def test_after_a_kill_the_log_is_read_and_not_believed(crashed):
    """A flipped byte in the last batch is found: recovery did read the log."""
    path = crashed.data / "torn-0" / LOG
    assert not (crashed.data / CLEAN_MARKER).exists()
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    crashed.start()
    with Raw(crashed.port) as raw:
        assert [each.value for each in raw.read_all("torn")] == [b"0-a", b"0-b", b"1-a", b"1-b"]


@pytest.mark.smoke
def test_a_second_node_on_the_same_folder_is_turned_away_and_harms_nothing(make_node, tmp_path):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("a")
        second = Node(tmp_path / "second", {"data.folder": str(node.data)})
        with pytest.raises(NodeEnded, match="another process uses the data folder"):
            second.start()
        assert raw.produce("a", 0, batch(b"x")).error_code == ErrorCode.NONE
    node.restart()


def test_a_node_whose_address_is_taken_says_so_and_leaves_its_folder_usable(make_node, tmp_path):
    node = make_node()
    second = Node(tmp_path / "second", {"listen": node.bootstrap})
    with pytest.raises(NodeEnded, match=r"[Aa]ddress already in use"):
        second.start()
    del second.settings["listen"]
    second.start()
    second.kill9()
