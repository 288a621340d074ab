"""A real Apache Kafka broker as a child process, from its published archives, to show that we work with any Kafka.

One process is broker and controller. It listens in plaintext, with SASL, and with TLS and SASL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from bench.kafka_files import NotFormatted, broker_settings, format_folder, java_words, write_settings

from millpond.client.errors import ClientError
from millpond.remote.cluster import Cluster
from support.jars import class_path
from support.node import HOST, free_port
from support.tls import Certificates

START_SECONDS_MAX = 150.0
STOP_SECONDS_MAX = 30.0
USER = "alice"
PASSWORD = "spilled-milk"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Little memory, and a quick start rather than fast code.
JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LISTENERS = {"CLEAR": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT", "SECRET": "SASL_SSL", "CONTROLLER": "PLAINTEXT"}
"""Each listener and its protocol."""


class BrokerEnded(Exception):
    """The process exited before it was ready."""


class KafkaBroker:
    """One broker with its own folder. The ports stay the same through restarts."""

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._class_path = class_path("broker")
        self._process: subprocess.Popen[bytes] | None = None
        self.ports = {name: free_port() for name in LISTENERS}
        self.certificates = Certificates(root)
        root.mkdir(parents=True, exist_ok=True)
        self._settings_path = root / "server.properties"
        write_settings(self._settings_path, {**self._own_settings(), **(settings or {})})

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.ports['CLEAR']}"

    def login(self, listener: str = "LOGIN", mechanism: str = "PLAIN", password: str = PASSWORD) -> dict[str, str]:
        """The settings of a client that logs in there, with the names of the Java clients."""
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        result = {
            "bootstrap.servers": f"{HOST}:{self.ports[listener]}",
            "security.protocol": LISTENERS[listener],
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": (
                f'org.apache.kafka.common.security.{module} required username="{USER}" password="{password}";'
            ),
        }
        if listener == "SECRET":
            result |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.certificates.authority)}
        return result

    def start(self) -> KafkaBroker:
        """Start and wait until it serves; an empty folder is formatted first."""
        assert self._process is None, "already running"
        if not (self._root / "data").exists():
            self._format()
        with (self._root / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                self._words("kafka.Kafka", str(self._settings_path)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "KAFKA_OPTS": ""},
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                code = self._process.poll()
                self.kill9()
                raise BrokerEnded(f"Kafka was not ready (exit code {code}): {self.log()[-3000:]}")
            time.sleep(0.1)
        return self

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def log(self) -> str:
        path = self._root / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def _own_settings(self) -> dict[str, str]:
        one_of_each = ("offsets.topic.num.partitions", "transaction.state.log.num.partitions")
        return {
            **broker_settings(1, HOST, self.ports, LISTENERS, self._root / "data"),
            "controller.quorum.bootstrap.servers": f"{HOST}:{self.ports['CONTROLLER']}",
            "inter.broker.listener.name": "CLEAR",
            **dict.fromkeys(one_of_each, "1"),
            **self._security_settings(),
        }

    def _security_settings(self) -> dict[str, str]:
        modules = "org.apache.kafka.common.security"
        plain = f'{modules}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        scram = f"{modules}.scram.ScramLoginModule required;"
        result = {"sasl.enabled.mechanisms": ",".join(MECHANISMS)}
        for listener in ("login", "secret"):
            for mechanism in MECHANISMS:
                name = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
                result[name] = plain if mechanism == "PLAIN" else scram
        result["ssl.keystore.type"] = "PEM"
        result["ssl.keystore.location"] = str(self.certificates.server)
        return result

    def _format(self) -> None:
        scrams = [
            word
            for mechanism in MECHANISMS[1:]
            for word in ("--add-scram", f"{mechanism}=[name={USER},iterations=4096,password={PASSWORD}]")
        ]
        try:
            format_folder(JAVA_OPTIONS, self._class_path, self._settings_path, "--standalone", *scrams)
        except NotFormatted as fault:
            raise BrokerEnded(str(fault)) from fault

    def _words(self, program: str, *words: str) -> list[str]:
        return java_words(JAVA_OPTIONS, self._class_path, program, *words)

    def _serves(self) -> bool:
        settings = {"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": "100"}
        try:
            with Cluster(settings) as cluster:
                return len(cluster.brokers()) == 1
        except ClientError:
            return False

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()
