"""A rolling restart: who is next, what speaks against it, and how a node is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.admin.nodes import ClusterFacts, NodeFacts
from millpond.admin.restart import restart_order, unhealthy_reason
from millpond.base.ids import TopicPartition
from millpond.cli.cluster.restart import _by_command, _by_signal
from millpond.cli.errors import Failed

NODES = tuple(NodeFacts(number, f"10.0.0.{number}:9092", "", number == 2, 1, 3, ()) for number in (1, 2, 3))
FACTS = ClusterFacts("c", NODES, ())


def test_the_controller_is_the_last() -> None:
    assert [node.node_id for node in restart_order(FACTS)] == [1, 3, 2]
    assert [node.node_id for node in restart_order(FACTS, only=(2, 3))] == [3, 2]


def test_no_node_restarts_while_another_is_away_or_behind() -> None:
    assert unhealthy_reason(FACTS, (1, 2, 3)) is None
    assert unhealthy_reason(FACTS, (1, 2, 3, 4)) == "node 4 is away"
    away = ClusterFacts("c", (*NODES[:2], replace(NODES[2], address=None)), ())
    assert unhealthy_reason(away, (1, 2, 3)) == "node 3 is away"
    behind = ClusterFacts("c", (*NODES[:2], replace(NODES[2], behind=(TopicPartition("a", 0),))), ())
    assert unhealthy_reason(behind, (1, 2, 3)) == "node 3 is behind in 1 partition"
    assert (
        unhealthy_reason(ClusterFacts("c", NODES, (TopicPartition("a", 0),)), (1, 2, 3))
        == "1 partition without a leader"
    )


def test_a_restart_command_gets_the_node_and_its_failure_is_reported(tmp_path: Path) -> None:
    text, restart = _by_command(f"sh -c 'echo {{node}} {{host}} {{port}} > {tmp_path}/said'", NODES[1], 30)
    assert "echo 2 10.0.0.2 9092" in text
    restart()
    assert (tmp_path / "said").read_text() == "2 10.0.0.2 9092\n"
    with pytest.raises(Failed, match="false ended with code 1: node 2 was not restarted"):
        _by_command("false", NODES[1], 30)[1]()
    with pytest.raises(Failed, match="nonesuch cannot be run"):
        _by_command("nonesuch", NODES[1], 30)[1]()
    with pytest.raises(Failed, match="sleep 60 did not finish within 0 s: check node 2"):
        _by_command("sleep 60", NODES[1], 0.1)[1]()


def test_a_process_is_ended_only_while_it_holds_the_folder(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="give the command that restarts a node with --run COMMAND"):
        _by_signal(str(tmp_path), NODES[0])
    lock = tmp_path / "node-1" / ".lock"
    lock.parent.mkdir()
    lock.write_text("1\n")
    with pytest.raises(Failed, match="node 1 does not run there"):
        _by_signal(str(tmp_path), NODES[0])
    program = (
        "from millpond.node.disk import RealDisk; import sys, time;"
        f"lock = RealDisk().lock({str(lock)!r}); print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        text, restart = _by_signal(str(tmp_path), NODES[0])
        assert text == f"SIGTERM to {process.pid}"
        restart()
        assert process.wait(10) == -15
