"""The settings, the formatted folder and the command of Apache Kafka brokers, for tests and measurements."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.jars import java_command

CLUSTER_ID = "bWlsbHBvbmQtdGVzdHMtMQ"
FORMAT_SECONDS_MAX = 150.0
CONTROLLER = "CONTROLLER"
OWN_TOPICS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
)


class NotFormatted(RuntimeError):
    """The folder was not formatted."""


def broker_settings(
    number: int, host: str, ports: Mapping[str, int], listeners: Mapping[str, str], data: Path, replicas: int = 1
) -> dict[str, str]:
    """The settings of a broker that is its own controller; `listeners` has the security protocol of each port."""
    addresses = {name: f"{name}://{host}:{port}" for name, port in ports.items()}
    offered = [address for name, address in addresses.items() if name != CONTROLLER]
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(offered),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in listeners.items()),
        "controller.listener.names": CONTROLLER,
        "log.dirs": str(data),
        "group.initial.rebalance.delay.ms": "0",
        **{name: str(min(replicas, 2) if name.endswith("isr") else replicas) for name in OWN_TOPICS},
    }


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))


def java_words(options: Sequence[str], class_path: str, program: str, *words: str) -> list[str]:
    return [java_command(), *options, "-cp", class_path, program, *words]


def format_folder(options: Sequence[str], class_path: str, settings_path: Path, *words: str) -> None:
    asked = ["format", "--cluster-id", CLUSTER_ID, "--config", str(settings_path), *words]
    done = subprocess.run(
        java_words(options, class_path, "kafka.tools.StorageTool", *asked),
        capture_output=True,
        text=True,
        timeout=FORMAT_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise NotFormatted(f"Kafka's folder was not formatted: {(done.stdout + done.stderr)[-3000:]}")
