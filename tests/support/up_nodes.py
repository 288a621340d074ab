"""Nodes as an operator runs them: processes of `millpond up`, of this or a previous version, that form a cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from millpond.testing.clients import Clients
from millpond.testing.ports import HOST, free_port

MILLPOND: Final = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())")
READY_WORD: Final = "Millpond "
"""The first word of the panel that a node shows when it serves."""

NO_CONSOLE: Final = {"MILLPOND_CONSOLE": "off"}
"""Its port is the same for all of them."""

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
COMMAND_SECONDS_MAX: Final = 150.0
TAIL_LINES: Final = 15


class Stand(NamedTuple):
    """How long a node stalled, and how much of that it had no core."""

    longest_ms: int
    without_core_ms: int


STAND: Final = re.compile(r"event loop stalled  stall_ms=(\d+) .*cpu_starved_ms=(\d+)")


@dataclass(eq=False)
class UpNode:
    """One node: its folder and address stay, its process changes with each start."""

    name: str
    folder: Path
    port: int
    options: Sequence[str]
    source: Path | None = None
    """A folder with another version of the package, which runs from the next start on."""
    lives: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def journal(self) -> Path:
        """The log since the last start."""
        return self.folder.with_name(f"{self.folder.name}.{self.lives}.txt")

    def launch(self) -> None:
        assert not self.is_running, f"node {self.name} runs already"
        self.lives += 1
        with self.journal.open("w") as told:
            self._process = subprocess.Popen(
                [
                    *MILLPOND,
                    "up",
                    "--data",
                    str(self.folder),
                    "--listen",
                    self.address,
                    *self.options,
                    "--with-parent",
                ],
                # The end of this pipe ends the node: no node outlives its campaign.
                stdin=subprocess.PIPE,
                stdout=told,
                stderr=subprocess.STDOUT,
                env={**os.environ, **NO_CONSOLE, **({"PYTHONPATH": str(self.source)} if self.source else {})},
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while READY_WORD not in self.journal.read_text():
            assert self.is_running, f"node {self.name} ended: {self.journal.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"node {self.name} is not ready: {self.journal.read_text()[-2000:]}"
            time.sleep(0.02)

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def stop(self) -> None:
        """Stop it as an operator would: it hands over its leaderships."""
        code = self._end(signal.SIGTERM)
        assert code == 0, f"node {self.name} ended with code {code}: {self.journal.read_text()[-2000:]}"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


class UpNodes(Clients):
    """A cluster of such nodes, by number."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        """`options` are those of every node."""
        super().__init__()
        self.folder = folder
        self.nodes: dict[int, UpNode] = {}
        self._options = options

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values() if node.is_running)

    def producer_settings(self) -> dict[str, Any]:
        return {"enable.idempotence": True}

    def found(self, count: int, source: Path | None = None) -> None:
        """A new cluster of this many nodes, from a nodes.toml."""
        file = self.folder / "nodes.toml"
        numbers = range(1, count + 1)
        for number in numbers:
            options = ["--node", str(number), "--cluster", str(file), *self._options]
            self.nodes[number] = UpNode(str(number), self.folder / f"node-{number}", free_port(), options, source)
        lines = [f'{number} = "{node.address}"' for number, node in self.nodes.items()]
        file.write_text("\n".join(["[nodes]", *lines, ""]))
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_until_ready()

    def join(self) -> UpNode:
        """A new node joins the cluster."""
        number = max(self.nodes) + 1
        at = next(node.address for node in self.nodes.values() if node.is_running)
        options = ["--join", at, "--node", str(number), *self._options]
        node = self.nodes[number] = UpNode(str(number), self.folder / f"node-{number}", free_port(), options)
        node.start()
        return node

    def wipe(self, number: int) -> None:
        """Its machine is lost, with everything on it."""
        self.nodes[number].kill()
        shutil.rmtree(self.nodes[number].folder)

    def forget(self, number: int) -> None:
        del self.nodes[number]

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def command(self, *words: str) -> str:
        """The output of a `millpond` command, which must succeed."""
        return self.output_of(self.begin(*words), *words)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*MILLPOND, *words, "-b", self.bootstrap],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @staticmethod
    def output_of(process: subprocess.Popen[str], *words: str) -> str:
        try:
            told, _ = process.communicate(timeout=COMMAND_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, f"millpond {' '.join(words)} ended with code {process.returncode}: {told}"
        return told

    def stands(self) -> dict[Path, list[Stand]]:
        """The stalls that the nodes logged."""
        return {
            path: [Stand(*map(int, found)) for found in STAND.findall(path.read_text(errors="replace"))]
            for path in self.folder.glob("node-*.txt")
        }

    def story(self) -> str:
        """The last output of every node that ever ran."""
        return "\n".join(
            f"{path.stem}: {line}"
            for path in sorted(self.folder.glob("node-*.txt"))
            for line in path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        )
