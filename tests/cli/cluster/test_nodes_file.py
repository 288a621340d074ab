"""The file of a cluster: what a node is told by it, and what cannot stand in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from millpond.cli.cluster.nodes_file import NodesFile, read_nodes, write_nodes
from millpond.config.node import NUM_PARTITIONS, ClusterNode, cluster_nodes, node_settings

THREE = """
[nodes]
1 = "127.0.0.1:9092"
2 = "localhost:9093"
3 = "127.0.0.1:9094"

[racks]
2 = "north"

[settings]
num.partitions = 6
auto.create.topics.enable = false
group.consumer.assignors = ["range", "uniform"]
"""


def written(folder: Path, text: str) -> str:
    path = folder / "nodes.toml"
    path.write_text(text)
    return str(path)


def test_a_node_gets_its_own_address_all_nodes_and_the_settings_of_all(tmp_path: Path) -> None:
    texts = read_nodes(written(tmp_path, THREE)).texts(2)
    settings = node_settings(texts)
    assert cluster_nodes(settings)[1] == ClusterNode(2, "127.0.0.1", 9093)
    assert [each.node_id for each in cluster_nodes(settings)] == [1, 2, 3]
    assert settings[NUM_PARTITIONS] == 6
    assert texts["listen"] == "127.0.0.1:9093"
    assert texts["advertised.listener"] == "localhost:9093", "clients are told the name"
    assert texts["broker.rack"] == "north"
    assert texts["auto.create.topics.enable"] == "false"
    assert texts["group.consumer.assignors"] == "range,uniform"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = NodesFile({1: "127.0.0.1:9092", 2: "[::1]:9093"}, settings={"num.partitions": "2", "cluster.id": 'a"b\\c'})
    write_nodes(tmp_path / "nodes.toml", file)
    assert read_nodes(str(tmp_path / "nodes.toml")) == file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nodes", "is not valid TOML"),
        ("", "names no nodes"),
        ("[node]\n1 = 'a:1'", "section 'node'"),
        ("[nodes]\nfirst = 'a:1'", "each line must have the form"),
        ("[nodes]\n1 = 9092", "each line must have the form"),
        ("[nodes]\n1 = 'a:1'\n1 = 'b:1'", "is not valid TOML"),
        ("[nodes]\n1 = 'a'", "node 1: 'a' is not an address"),
        ("nodes = 3", "must be a section"),
        ("[nodes]\n1 = 'a:1'\n[racks]\n2 = 'x'", r"\[racks\] names the node 2"),
        ("[nodes]\n1 = 'a:1'\n[settings]\nnode.id = 3", "node.id differs from node to node"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        read_nodes(written(tmp_path, text))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--node", "1"], "name its file with --cluster FILE"),
        (["--cluster", "{file}"], "name this node with --node N; it has 1, 2, 3"),
        (["--cluster", "{file}", "--node", "4"], "--node 4 is not in"),
        (["--cluster", "/nowhere/nodes.toml", "--node", "4"], "cannot be read: no such file"),
    ],
)
def test_up_says_how_a_node_of_a_cluster_is_named(
    lonely: Any, tmp_path: Path, options: list[str], message: str
) -> None:
    file = written(tmp_path, THREE)
    lonely.fails("up", *(each.format(file=file) for each in options), cwd=tmp_path, code=2, error=message)
    assert not (tmp_path / "millpond-cluster").exists()


def test_an_unknown_host_name_is_reported(lonely: Any, tmp_path: Path) -> None:
    file = written(tmp_path, '[nodes]\n1 = "no-such-host.invalid:9092"')
    lonely.fails(
        "up", "--cluster", file, "--node", "1", cwd=tmp_path, error="The host name no-such-host.invalid is unknown"
    )
