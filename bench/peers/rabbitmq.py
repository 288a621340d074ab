"""RabbitMQ, read as a stream or as a queue, in a private folder with a private Erlang name server."""

from __future__ import annotations

import os
import subprocess
from typing import IO

from bench.node import HOST, free_port
from bench.peers.foreign import ForeignNode, program

SCRIPT = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Not the script in the path, which requires the user `rabbitmq` and the system's folders."""


class RabbitNode(ForeignNode):
    """It is measured by its stream protocol."""

    _names: subprocess.Popen[bytes] | None = None

    def listeners(self) -> dict[str, str]:
        return {"listeners.tcp.1": f"{HOST}:{free_port()}", "stream.listeners.tcp.1": f"{HOST}:{self.port}"}

    def words(self, folder: str) -> list[str]:
        program("rabbitmq-server", "rabbitmq-server")
        return [SCRIPT]

    def launched(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        names_port = free_port()
        own = {"HOME": self._root, "ERL_EPMD_PORT": str(names_port), "ERL_EPMD_ADDRESS": HOST}
        self._names = subprocess.Popen(
            [program("epmd", "erlang-base")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **own},
        )
        settings = {
            **self.listeners(),
            "log.console": "false",
            **self.settings,
        }
        self._written("rabbitmq.conf", "".join(f"{name} = {text}\n" for name, text in settings.items()))
        environment = {
            **os.environ,
            **own,
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": self.folder,
            "RABBITMQ_LOG_BASE": os.path.join(self._root, "logs"),
            "RABBITMQ_CONFIG_FILE": os.path.join(self._root, "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": self._written("enabled_plugins", "[rabbitmq_stream].\n"),
        }
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _written(self, name: str, text: str) -> str:
        path = os.path.join(self._root, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def remove(self) -> None:
        # Killing the script would leave the virtual machine running.
        self.stop()
        names, self._names = self._names, None
        if names is not None:
            names.kill()
            names.wait()
        super().remove()


class RabbitQueueNode(RabbitNode):
    """It is measured by AMQP."""

    def listeners(self) -> dict[str, str]:
        return {"listeners.tcp.1": f"{HOST}:{self.port}", "stream.listeners.tcp.1": f"{HOST}:{free_port()}"}
