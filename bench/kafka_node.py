"""Apache Kafka from its published archives, one broker or three, with its default settings and Java options.

Heap and garbage collector are those of its start script; its sample settings are the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.cluster import Nodes
from bench.jars import NoJars, fetched
from bench.kafka_files import CONTROLLER, broker_settings, format_folder, java_words, write_settings
from bench.line import LeftOut
from bench.node import HOST, Node, Ready, free_port

HEAP = "1G"
JAVA_OPTIONS = (
    f"-Xmx{HEAP}",
    f"-Xms{HEAP}",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
FORMAT_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CLEAR = "CLEAR"
LISTENERS = {CLEAR: "PLAINTEXT", CONTROLLER: "PLAINTEXT"}


def archives() -> str:
    """Kafka's class path; LeftOut if it is not available."""
    try:
        return os.pathsep.join(map(str, fetched("broker")))
    except NoJars as reason:
        raise LeftOut(str(reason)) from reason


class KafkaNode(Node):
    """One broker that is its own controller, or one of `controllers`: the port of each by its number."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
        number: int = 1,
        controllers: Mapping[int, int] | None = None,
    ) -> None:
        self._class_path = archives()
        super().__init__(settings, port or free_port())
        self._number = number
        self._controllers = dict(controllers or {number: free_port()})

    @property
    def _settings_path(self) -> Path:
        return Path(self._root) / "server.properties"

    def words(self, folder: str) -> list[str]:
        return java_words(JAVA_OPTIONS, self._class_path, "kafka.Kafka", str(self._settings_path))

    def start(self) -> Ready:
        ports = {CLEAR: self._own_port, CONTROLLER: self._controllers[self._number]}
        count = len(self._controllers)
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in self._controllers.items())
        settings = {
            **broker_settings(self._number, HOST, ports, LISTENERS, Path(self.folder), count),
            "controller.quorum.voters": voters,
            "inter.broker.listener.name": CLEAR,
            "default.replication.factor": str(count),
            **self.settings,
        }
        write_settings(self._settings_path, settings)
        if not os.path.exists(self.folder):
            format_folder(FORMAT_OPTIONS, self._class_path, self._settings_path)
        return super().start()


class KafkaNodes(Nodes):
    """Three brokers, each of them also a controller."""

    def made(
        self, ports: Mapping[int, int], settings: Mapping[str, str], kind: Callable[..., Node]
    ) -> dict[int, Node]:
        controllers = {number: free_port() for number in ports}
        return {number: KafkaNode(settings, port, number, controllers) for number, port in ports.items()}
