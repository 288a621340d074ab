"""A node in the foreground: what it says, how it ends, and why it will not start."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(start_node: Callable[..., Any], number: int) -> None:
    """How long it may wait for others before is a matter of the broker's drain, on simulated clocks."""
    node = start_node()
    assert node.stop(number) == 0
    assert (node.data / ".kafka_cleanshutdown").exists()


@pytest.mark.smoke
def test_the_panel_says_where_it_is_and_how_to_reach_it(start_node: Callable[..., Any]) -> None:
    node = start_node()
    host, _, port = node.address.rpartition(":")
    socket.create_connection((host, int(port)), 5).close()
    assert node.panel["data"] == str(node.data)
    assert node.panel["cluster"].endswith(", node 1")
    assert node.panel["topic"] == f"millpond topic create orders -b {node.address}"
    assert node.address in node.panel["kcat"]
    assert node.panel["stop"] == f"kill {node.process.pid}"


def test_it_stays_small(start_node: Callable[..., Any]) -> None:
    assert psutil.Process(start_node().process.pid).memory_info().rss < 60e6


def test_it_comes_back_as_the_same_cluster(start_node: Callable[..., Any], tmp_path: Path) -> None:
    first = start_node(data=tmp_path / "d")
    first.stop()
    assert start_node(data=tmp_path / "d").panel["cluster"] == first.panel["cluster"]


def test_in_a_terminal_the_panel_is_a_box(in_terminal: Callable[..., Any], tmp_path: Path) -> None:
    data = Path("d")
    screen = in_terminal("up", "--listen", "127.0.0.1:0", "--data", str(tmp_path / data))
    text = screen.read_until("Ctrl-C")
    if "╭" in text:
        # A folder whose path is too long for 80 columns gets no box rather than a broken one.
        text = screen.read_until("╯")
        widths = {
            len(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) for line in text.splitlines() if line[:1] in "╭│╰"
        }
        assert len(widths) == 1
        assert widths.pop() <= 80
    screen.type("\x03")
    screen.process.send_signal(signal.SIGINT)
    assert screen.finish() == 0
    assert "Stopped" in screen.text


def test_settings_come_from_the_file_and_the_command_line_goes_before_it(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    config = tmp_path / "node.conf"
    config.write_text("# a comment\n\nnode.id = 5\ncluster.id=from-file\n")
    node = start_node("--config", str(config), "--set", "node.id=7")
    assert node.panel["cluster"] == "from-file, node 7"


@pytest.mark.smoke
def test_a_taken_port_suggests_a_free_one(lonely: Any, node: Any, tmp_path: Path) -> None:
    result = lonely("up", "--listen", node.address, "--data", str(tmp_path / "d"))
    assert result.code == 1
    host, _, port = node.address.rpartition(":")
    assert result.err.startswith(f"millpond: Port {port} of {host} is taken")
    offered = result.err.split("--listen ")[1].split("`")[0].rpartition(":")[2]
    with socket.socket() as probe:
        probe.bind((host, int(offered)))


def test_a_folder_in_use_is_refused(lonely: Any, node: Any) -> None:
    result = lonely("up", "--listen", "127.0.0.1:0", "--data", str(node.data))
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        f"millpond: Another process uses the data folder {node.data}: "
        "stop it, or choose another folder with --data DIR.\n"
    )


def test_an_unusable_folder_is_refused(lonely: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lonely.fails(
        "up",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "file" / "data"),
        error="cannot be used (not a directory): choose another with --data DIR.",
    )


def test_the_folder_of_another_node_is_refused(lonely: Any, start_node: Callable[..., Any]) -> None:
    node = start_node()
    node.stop()
    lonely.fails(
        "up",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(node.data),
        "--set",
        "node.id=9",
        error="belongs to node 1, not to node 9; choose another folder with --data DIR.",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "num.partition=3"), "unknown node setting num.partition; did you mean num.partitions?"),
        (("--set", "num.partitions=0"), "num.partitions=0: must be at least 1."),
        (("--set", "num.partitions"), "give it as name=value."),
        (("--listen", "here:port"), "'here:port' is not an address of the form host:port."),
        (("--config", "nowhere.conf"), "--config nowhere.conf cannot be read: no such file or directory."),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(
    lonely: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = lonely("up", *arguments, cwd=tmp_path)
    assert result.code == 2
    assert message in result.err.splitlines()[-1]
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_a_wrong_line_of_the_file_is_named(lonely: Any, tmp_path: Path) -> None:
    (tmp_path / "node.conf").write_text("node.id=1\nnum.partitons=3\n")
    lonely.fails(
        "up",
        "--config",
        "node.conf",
        cwd=tmp_path,
        code=2,
        error="node.conf, line 2: unknown node setting num.partitons; did you mean num.partitions?",
    )


def test_a_server_properties_file_of_kafka_is_taken_with_warnings(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker,controller\nbroker.id=4\nnum.network.threads=3\nlog.dirs=/nowhere/kafka-logs\n"
        "log.retention.hours=168\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
    )
    node = start_node("--config", str(config))
    assert node.panel["cluster"].endswith(", node 4")
    node.process.terminate()
    lines = node.process.communicate(timeout=60)[1].decode().splitlines()
    result = [line.partition(": Without effect")[0] for line in lines if "Without effect" in line]
    assert result == [f"{config}, line 1: process.roles", f"{config}, line 3: num.network.threads"]


def test_a_data_folder_of_kafka_is_refused(lonely: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kafka-logs"
    folder.mkdir()
    (folder / "bootstrap.checkpoint").write_bytes(b"")
    (tmp_path / "server.properties").write_text(f"broker.id=1\nlog.dirs={folder}\n")
    lonely.fails("up", "--config", "server.properties", cwd=tmp_path, code=2, error="has data of Kafka")


def test_an_address_of_another_machine_is_refused(lonely: Any, tmp_path: Path) -> None:
    lonely.fails(
        "up",
        "--listen",
        "192.0.2.1:9092",
        "--data",
        str(tmp_path / "d"),
        error="192.0.2.1 is not an address of this machine",
    )


def test_a_start_that_fails_leaves_no_folder_behind(lonely: Any, tmp_path: Path, node: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note").write_text("")
    result = lonely("up", "--listen", node.address, "--data", str(tmp_path / "new" / "deep"))
    assert "is taken" in result.err
    lonely("up", "--listen", node.address, "--data", str(tmp_path / "mine"))
    result = lonely("up", "--cores", "2", "--listen", node.address, "--data", str(tmp_path / "cores"))
    assert "cannot be listened on" in result.err
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "note").exists()


def test_under_nohup_a_closed_terminal_ends_nothing(lonely: Any, tmp_path: Path) -> None:
    process = lonely.start(
        "up", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stdout.readline().startswith(b"Millpond")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_signal_while_it_starts_ends_it_too(lonely: Any, tmp_path: Path) -> None:
    process = lonely.start("up", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"))
    try:
        process.wait(0.12)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM)
    assert b"Traceback" not in err
