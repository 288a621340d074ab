"""A standalone node becomes the first of a cluster, as real processes: it keeps serving, and nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from millpond.cli import command
from millpond.testing.ports import free_port
from support.up_nodes import UpNode

HOST = "127.0.0.1"
READY_SECONDS = 30
FEW = ("--set", "offsets.topic.num.partitions=2")


class Nodes:
    """Nodes by name, each with its own folder and port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: dict[str, UpNode] = {}

    def at(self, name: str) -> str:
        return self._nodes[name].address

    def up(self, name: str, *options: str) -> None:
        self.begin(name, *options)
        self.await_ready(name)

    def begin(self, name: str, *options: str) -> None:
        if name not in self._nodes:
            self._nodes[name] = UpNode(name, self._folder / name, free_port(), ())
        self._nodes[name].options = (*FEW, *options)
        self._nodes[name].launch()

    def await_ready(self, name: str) -> None:
        self._nodes[name].wait_until_ready()

    def kill(self, name: str) -> None:
        self._nodes[name].kill()

    def stop(self, name: str) -> None:
        self._nodes[name].stop()

    def close(self) -> None:
        for node in self._nodes.values():
            node.kill()


def until(condition: Callable[[], bool], told: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        made.close()


def run(*words: str, lines: str | None = None, code: int = 0) -> str:
    result = CliRunner().invoke(command, words, input=lines)
    assert result.exit_code == code, result.output
    return result.output


def listed(at: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run("node", "list", "--json", "-b", at))
    return found


def read(at: str) -> list[str]:
    said = run("consume", "orders", "--from", "beginning", "--until-end", "-b", at)
    return sorted((line for line in said.split() if line.isdigit()), key=int)


def numbers(first: int, end: int) -> str:
    return "".join(f"{number}\n" for number in range(first, end))


def test_one_becomes_three_and_the_first_one_dies_and_is_replaced(nodes: Nodes) -> None:
    nodes.up("one")
    first = nodes.at("one")
    run("topic", "create", "orders", "-b", first)
    run("produce", "orders", "-b", first, lines=numbers(0, 500))
    nodes.up("two", "--join", first)
    nodes.up("three", "--join", nodes.at("two"))
    until(lambda: [each["voter"] for each in listed(first)] == [True] * 3, lambda: listed(first))
    run("topic", "replicas", "--all", "--factor", "3", "--yes", "-b", first)
    nodes.kill("one")
    others = f"{nodes.at('two')},{nodes.at('three')}"
    run("produce", "orders", "-b", others, lines=numbers(500, 600))
    assert read(others) == [str(number) for number in range(600)]

    said = run("node", "remove", "1", "--yes", "-b", others, code=1)
    assert "move everything away first" in said
    nodes.up("four", "--join", others.partition(",")[0])
    run("node", "drain", "1", "--yes", "-b", others)
    assert "Removed node 1." in run("node", "remove", "1", "--yes", "-b", others)
    until(lambda: [each["voter"] for each in listed(others)] == [True] * 3, lambda: listed(others))
    assert [each["node"] for each in listed(others)] == [2, 3, 4]

    # A later start needs only the folder.
    nodes.stop("two")
    nodes.up("two")
    run("produce", "orders", "-b", nodes.at("two"), lines=numbers(600, 610))
    assert read(nodes.at("two")) == [str(number) for number in range(610)]


def test_nodes_that_join_at_the_same_time_get_numbers_of_their_own(nodes: Nodes) -> None:
    nodes.up("one")
    late = ("two", "three")
    for name in late:
        # With several addresses, one that works is enough.
        nodes.begin(name, "--join", f"{HOST}:{free_port()},{nodes.at('one')}")
    for name in late:
        nodes.await_ready(name)
    assert {each["node"]: each["there"] for each in listed(nodes.at("one"))} == {1: True, 2: True, 3: True}


def test_bad_news_is_a_sentence(nodes: Nodes, tmp_path: Path) -> None:
    nodes.up("one")
    at = nodes.at("one")
    other = ["--listen", f"{HOST}:0"]
    nobody = f"{HOST}:{free_port()}"
    told = run("up", "--join", nobody, "--data", str(tmp_path / "x"), *other, code=1)
    assert "Nothing listens" in told
    assert "or name another with --join." in told
    taken = run("up", "--join", at, "--node", "1", "--data", str(tmp_path / "x"), *other, code=1)
    assert "Node 1 is running" in taken
    nodes.up("alone")
    nodes.stop("alone")
    said = run("up", "--join", at, "--data", str(tmp_path / "alone"), *other, code=1)
    assert "belongs to another cluster" in said
    nodes.up("alone")
    nodes.up("second", "--join", nodes.at("alone"))
    nodes.stop("second")
    said = run("up", "--join", at, "--data", str(tmp_path / "second"), *other, code=1)
    assert "belongs to another cluster" in said, "also where it had joined one"
    assert "There is no node 7" in run("node", "describe", "7", "-b", at, code=1)
    assert "is running at" in run("node", "remove", "1", "--yes", "-b", at, code=1)
    assert json.loads(run("node", "drain", "1", "--yes", "--json", "-b", at))["moves"] == []
    assert listed(at)[0]["drained"], "also where there was nothing to move"
    said = run("node", "drain", "1", "--yes", "-b", at)
    assert "Node 1 holds nothing." in said
    run("node", "drain", "1", "--undo", "-b", at)
    run("topic", "create", "orders", "-b", at)
    assert "cannot be drained" in run("node", "drain", "1", "--yes", "-b", at, code=1)
