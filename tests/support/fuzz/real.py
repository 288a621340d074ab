"""The same requests over sockets to a real node, which measures the turns of its own loop (`bench/turns.py`)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import psutil

from millpond.testing.ports import HOST, free_port
from support.fuzz.answers import LENGTH, Answers
from support.fuzz.corpus import Corpus
from support.fuzz.frames import FrameMaker
from support.fuzz.pools import Pools
from support.fuzz.scenes import OF_CLIENTS
from support.fuzz.session import SLOW_ONCE, Outcome
from support.fuzz.watch import TURN_SECONDS_MAX, Found, Slow
from support.raw import Raw, batch

ROOT = Path(__file__).parents[3]
START_SECONDS = 60.0
ANSWER_SECONDS = 0.003
"""How long to wait for a response; it may come with a later one, or never."""

GROWTH_BYTES_MAX = 96 << 20
SETTINGS = {
    "max.partitions": "2000",
    "max.partitions.per.topic": "100",
    "max.connection.creation.rate.per.ip": "1000000",
}
"""A client that may create topics can fill a disk, and one that connects too often is delayed: neither is tested
here.
"""

KEYS = tuple(key for key in OF_CLIENTS if key not in (33, 44))
"""A client that may change a node's settings may make it refuse all connections."""


class RealNode:
    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.data = root / "data"
        self._journal = root / "journal.txt"
        texts = {"data.folder": str(self.data), "listen": f"{HOST}:{self.port}", **SETTINGS}
        with self._journal.open("wb") as journal:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.turns", *(f"{name}={text}" for name, text in texts.items())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=journal,
                text=True,
                cwd=ROOT,
            )
        self._facts = psutil.Process(self._process.pid)
        self._await()

    def _await(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                Raw(self.port).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self.journal()[-2000:]
                assert self._process.poll() is None, self.journal()[-2000:]
                time.sleep(0.01)

    def journal(self) -> str:
        return self._journal.read_text(errors="replace")

    def worst_turn(self) -> dict[str, Any]:
        """The longest turn of its loop since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        worst: dict[str, Any] = json.loads(self._process.stdout.readline())
        return worst

    def resident_bytes(self) -> int:
        return int(self._facts.memory_info().rss)

    def strange_files(self) -> list[str]:
        """Open files that are not part of its data."""
        result = []
        folder = f"/proc/{self._process.pid}/fd"
        for name in os.listdir(folder):
            try:
                path = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            usual = ("socket:", "pipe:", "anon_inode:", "/dev/", "/proc/", str(self.data), str(self._journal))
            if not path.startswith(usual):
                result.append(path)
        return result

    def check(self) -> None:
        if self._process.poll() is not None:
            raise Found(f"the node ended with code {self._process.returncode}: {self.journal()[-1500:]}")
        if "a bug in Millpond" in self.journal():
            raise Found(self.journal()[-1500:])

    def told(self) -> str:
        """The node's stacks and last output, to find out why it does not answer."""
        facts = f"{self._facts.num_fds()} files, {self.resident_bytes() >> 20} MiB, {self._facts.cpu_times()}"
        waiting = _said_by("ss", "-ltn", f"sport = :{self.port}")
        stacks = _said_by("py-spy", "dump", "--nonblocking", "--pid", str(self._process.pid))
        return "\n".join([facts, waiting, stacks, self.journal()[-4000:]])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _said_by(tool: str, *words: str) -> str:
    path = shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if path is None:
        return f"{tool} is not installed"
    return subprocess.run([path, *words], capture_output=True, text=True, check=False, timeout=30).stdout


class RealLife:
    """One node in a folder, and hostile clients for this many frames."""

    def __init__(self, root: Path, seed: int, frames: int, corpus: Corpus) -> None:
        self._draw = Random(seed)
        self._random = self._draw.random
        self._pools = Pools(self._draw)
        self._maker = FrameMaker(self._draw, self._pools, KEYS)
        self._frames = frames
        self._corpus = corpus
        self._root = root
        self.outcome = Outcome(seed)

    def run(self) -> Outcome:
        node = RealNode(self._root)
        try:
            self._play(node)
        except Slow as slow:
            self.outcome.ended = SLOW_ONCE
            self.outcome.findings.append(str(slow))
        except Found as found:
            self.outcome.findings.append(str(found))
        finally:
            node.close()
        return self.outcome

    def _play(self, node: RealNode) -> None:
        outcome = self.outcome
        with Raw(node.port) as raw:
            for name in ("pond", "lake", "canary"):
                raw.create_topic(name, 3)
                assert not raw.produce(name, 0, batch(b"still here")).error_code
            self._pools.secrets = "canary", raw.topic_id("canary")
        files = set(node.strange_files())
        node.worst_turn()
        weighed = 0
        while outcome.frames < self._frames:
            self._talk(node)
            if outcome.connections % 200 == 0:
                node.check()
                self._look_after(node)
            if not weighed and outcome.frames > self._frames // 4:
                weighed = node.resident_bytes()
        node.check()
        worst = node.worst_turn()
        outcome.longest_ms = worst["cpu_ms"]
        if worst["cpu_ms"] > 1000 * TURN_SECONDS_MAX:
            raise Slow(f"a turn of the loop took {worst['cpu_ms']:.0f} ms of processor time: {worst['stacks']}")
        if strange := set(node.strange_files()) - files:
            raise Found(f"files were opened: {sorted(strange)}")
        if (grown := node.resident_bytes() - weighed) > GROWTH_BYTES_MAX:
            raise Found(f"memory grew by {grown >> 20} MiB")
        self._look_after(node)

    def _look_after(self, node: RealNode) -> None:
        """A well-behaved client connects, reads and disconnects."""
        try:
            with Raw(node.port) as raw:
                value = raw.read_all("canary")[0].value
        except OSError as error:
            raise Found(f"a decent client hears nothing: {error}\n{node.told()}") from error
        if value != b"still here":
            raise Found("what a decent client wrote is gone")

    def _talk(self, node: RealNode) -> None:
        self.outcome.connections += 1
        answers = Answers(self._pools)
        try:
            sock = socket.create_connection((HOST, node.port), timeout=10)
        except OSError as error:
            node.check()
            raise Found(f"no connection is accepted any more: {error}\n{node.told()}") from error
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(ANSWER_SECONDS)
            try:
                for _ in range(1 + int(self._random() * 10)):
                    for data in self._requests():
                        answers.ask(data)
                        sock.sendall(LENGTH.pack(len(data)) + data)
                        self.outcome.frames += 1
                    if not self._hear(sock, answers):
                        break
            except (ConnectionError, TimeoutError):
                pass
        self.outcome.answers += answers.count

    def _hear(self, sock: socket.socket, answers: Answers) -> bool:
        """Whether the connection stays open."""
        try:
            while data := sock.recv(1 << 16):
                answers.take(data)
                if len(data) < 1 << 16:
                    return True
        except TimeoutError:
            return True
        return False

    def _requests(self) -> list[bytes]:
        maker, requests = self._maker, self._corpus.requests
        tokens = maker.fresh()
        if requests and self._random() < 0.4:
            chosen = requests[int(self._random() * len(requests))]
            if chosen and int.from_bytes(chosen[0][2], "big", signed=True) in KEYS:
                tokens = maker.again(chosen)
        if self._random() < 0.6:
            return [b"".join([token[2] for token in tokens])]
        return [maker.bytes_of(maker.spoilt(tokens))]
