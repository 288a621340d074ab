"""A cluster on this machine: what is said of it, and why it will not start."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import with_time


class Running:
    """`millpond cluster up` with its lines as they come."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._coming: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._coming.put(line.decode().rstrip())

    def read_until(self, *parts: str, seconds: float = 60) -> str:
        """The next line that has all these words."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._coming.get(timeout=left)
            except queue.Empty:
                break
            self.lines.append(line)
            if all(word in line for word in parts):
                return line
        raise AssertionError(f"{parts} did not come; what came:\n" + "\n".join(self.lines))


@pytest.fixture
def start_cluster(lonely: Any, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*options: str) -> Running:
        data = ("--data", str(tmp_path / "c"), "--listen", "127.0.0.1:0")
        started.append(Running(lonely.start("cluster", "up", *data, *options)))
        return started[-1]

    yield start
    for each in started:
        # It asks its nodes to end, and they end with it in any case.
        each.process.terminate()
        try:
            each.process.wait(40)
        finally:
            each.process.kill()
            each.process.wait()
            assert each.process.stdout is not None
            assert each.process.stderr is not None
            each.process.stdout.close()
            each.process.stderr.close()


def pid_of(data: Path) -> int:
    """The process that holds the folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"up" in words and str(data).encode() in words:
                return int(entry.name)
    raise AssertionError(f"nobody runs on {data}")


@pytest.mark.smoke
def test_it_says_where_it_is_starts_again_what_dies_and_ends_all(
    start_cluster: Callable[..., Running], tmp_path: Path
) -> None:
    cluster = start_cluster()
    bootstrap = cluster.read_until("bootstrap").split()[1].split(",")
    assert len(bootstrap) == 3
    killed = pid_of(tmp_path / "c" / "node-2")
    os.kill(killed, signal.SIGKILL)
    cluster.read_until("node 2", "was killed by SIGKILL", "restarting")
    again = cluster.read_until("node 2", "ready, pid")
    pids = [pid_of(tmp_path / "c" / f"node-{number}") for number in (1, 2, 3)]
    assert killed not in pids
    assert again.split()[-1] == str(pids[1])
    cluster.process.send_signal(signal.SIGTERM)
    cluster.read_until("Stopped; everything is on disk.")
    assert cluster.process.wait(60) == 0
    for number in (1, 2, 3):
        assert (tmp_path / "c" / f"node-{number}" / ".kafka_cleanshutdown").exists()


def test_without_restart_a_dead_node_stays_down(start_cluster: Callable[..., Running], tmp_path: Path) -> None:
    cluster = start_cluster("--no-restart")
    cluster.read_until("bootstrap")
    os.kill(pid_of(tmp_path / "c" / "node-3"), signal.SIGKILL)
    assert "restarting" not in cluster.read_until("node 3", "was killed by SIGKILL")
    cluster.read_until("node 3", "ended:")


def test_nodes_end_with_their_parent(start_cluster: Callable[..., Running], tmp_path: Path) -> None:
    cluster = start_cluster()
    cluster.read_until("bootstrap")
    pids = [pid_of(tmp_path / "c" / f"node-{number}") for number in (1, 2, 3)]
    cluster.process.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@with_time
def test_nodes_are_restarted_by_a_command_for_each(
    start_cluster: Callable[..., Running], lonely: Any, tmp_path: Path
) -> None:
    """As by ssh on machines of their own: the command ends the node, and whoever looks after it starts it again."""
    cluster = start_cluster()
    bootstrap = cluster.read_until("bootstrap").split()[1]
    before = [pid_of(tmp_path / "c" / f"node-{number}") for number in (1, 2, 3)]
    end = (
        f"sh -c 'kill $(cat {tmp_path}/c/node-{{node}}/.lock) && echo {{node}} {{host}}:{{port}} >> {tmp_path}/said'"
    )
    result = lonely.succeeds("cluster", "restart", "--run", end, "--yes", "-b", bootstrap, "--timeout", "60")
    assert result.out.count("restarted in") == 3
    assert "Every node was restarted." in result.out
    at = dict(enumerate(bootstrap.split(","), 1))
    assert sorted((tmp_path / "said").read_text().splitlines()) == [f"{node} {at[node]}" for node in (1, 2, 3)]
    after = [pid_of(tmp_path / "c" / f"node-{number}") for number in (1, 2, 3)]
    assert not {*before} & {*after}
    # One that only seems to restart a node is not believed.
    lonely.fails(
        "cluster",
        "restart",
        "--run",
        "true",
        "--yes",
        "-b",
        bootstrap,
        "--timeout",
        "2",
        "--node",
        "2",
        error="Node 2 did not stop within 2 s",
    )


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--listen", "nonsense:port"], 2, "--listen nonsense:port"),
        (["--listen", "127.0.0.1:65535"], 2, "there are no 3 ports from 65535 on"),
        (["--listen", "0.0.0.0:9092"], 2, "the nodes must be able to reach each other"),
        (["--listen", "192.0.2.1:9092"], 1, "192.0.2.1:9092 cannot be listened on"),
        (["--nodes", "0"], 2, "--nodes"),
        (["--set", "nonsense"], 2, "--set nonsense: give it as name=value"),
        (["--set", "num.partition=3"], 2, "did you mean num.partitions"),
    ],
)
def test_invalid_options_are_refused_and_change_nothing(
    lonely: Any, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    lonely.fails("cluster", "up", "--data", str(tmp_path / "c"), *options, code=code, error=message)
    assert not (tmp_path / "c").exists()


def test_a_taken_port_is_reported(lonely: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = lonely("cluster", "up", "--nodes", "1", "--listen", f"127.0.0.1:{port}", cwd=tmp_path)
    assert result.code == 1
    assert f"127.0.0.1:{port} cannot be listened on (address already in use)" in result.err


def test_a_folder_keeps_the_number_of_its_nodes(lonely: Any, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "nodes.toml").write_text('[nodes]\n1 = "127.0.0.1:9092"\n2 = "127.0.0.1:9093"\n')
    lonely.fails(
        "cluster",
        "up",
        "--data",
        str(tmp_path / "c"),
        "--listen",
        "127.0.0.1:0",
        error="holds a cluster of 2 nodes: start it with --nodes 2",
    )


def test_one_node_that_cannot_start_stops_the_others(lonely: Any, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "node-2").write_text("no folder")
    lonely.fails(
        "cluster",
        "up",
        "--data",
        str(tmp_path / "c"),
        "--listen",
        "127.0.0.1:0",
        error="Node 2 cannot start: The data folder",
    )


def test_more_replicas_than_nodes_and_a_folder_of_another_cluster_change_nothing(
    lonely: Any, start_cluster: Callable[..., Running], tmp_path: Path
) -> None:
    bootstrap = start_cluster().read_until("bootstrap").split()[1]
    lonely.fails(
        "topic",
        "create",
        "wide",
        "--replicas",
        "4",
        "-b",
        bootstrap,
        error="replication factor 4 is larger than the number of registered brokers, 3",
    )
    assert "wide" not in lonely("topic", "list", "-b", bootstrap).out

    other, nodes = tmp_path / "other", tmp_path / "c" / "nodes.toml"
    shutil.copytree(tmp_path / "c" / "node-2", other)
    identity = (other / "meta.properties").read_bytes()
    listen = ("--listen", "127.0.0.1:0", "--data", str(other))
    lonely.fails(
        "up",
        "--node",
        "2",
        "--cluster",
        str(nodes),
        *listen,
        "--set",
        "cluster.id=AAAAAAAAAAAAAAAAAAAAAA",
        error=(
            "the data folder belongs to cluster",
            "not to AAAAAAAAAAAAAAAAAAAAAA; choose another folder with --data DIR.",
        ),
    )
    result = lonely("up", "--node", "3", "--cluster", str(nodes), *listen)
    assert "belongs to node 2, not to node 3; choose another folder with --data DIR." in result.err
    assert (other / "meta.properties").read_bytes() == identity


@with_time
def test_a_second_process_with_the_id_of_a_node(
    lonely: Any, start_cluster: Callable[..., Running], tmp_path: Path
) -> None:
    bootstrap = start_cluster().read_until("bootstrap").split()[1]
    nodes = str(tmp_path / "c" / "nodes.toml")
    words = ("--node", "2", "--cluster", nodes, "--data", str(tmp_path / "second"), "--listen", "127.0.0.1:0")
    lonely.fails(
        "up",
        *words,
        error="This node cannot join its cluster: another process runs as node 2 of this cluster: stop it, or give ",
    )
    status = lonely("cluster", "status", "-b", bootstrap).out
    assert status.count("ready") == 3
