"""The command as a user runs it: real processes, a real node on a free port, a real terminal where one matters."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

MILLPOND = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())")

MILLPOND_WITH_HANGUP = (
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from millpond.cli import main; sys.exit(main())",
)
"""The same with a SIGHUP that counts: under `nohup` the tests, and all that they start, inherit it as ignored."""


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND")}
    # Nobody's own profiles.
    return kept | {"TZ": "UTC", "XDG_CONFIG_HOME": "/nonexistent", "PAGER": "cat"} | more


@dataclass
class Finished:
    code: int
    out: str
    err: str
    raw: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


class Command:
    """Runs `millpond` against one node, or none."""

    def __init__(self, bootstrap: str | None = None) -> None:
        self.environment = clean_environment(**({"MILLPOND_BOOTSTRAP": bootstrap} if bootstrap else {}))

    def __call__(self, *arguments: str, stdin_data: bytes | str = b"", cwd: Path | None = None) -> Finished:
        data = stdin_data.encode() if isinstance(stdin_data, str) else stdin_data
        done = subprocess.run(
            [*MILLPOND, *arguments], input=data, capture_output=True, env=self.environment, cwd=cwd, timeout=60
        )
        return Finished(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode(), done.stdout)

    def succeeds(self, *arguments: str, **options: Any) -> Finished:
        done = self(*arguments, **options)
        assert done.code == 0, (arguments, done.out, done.err)
        return done

    def fails(self, *arguments: str, error: str | tuple[str, ...], code: int = 1, **options: Any) -> None:
        """Checks the exit code, and that these texts are on standard error, however its lines are wrapped."""
        done = self(*arguments, **options)
        assert done.code == code, done
        shown = " ".join(done.err.split())
        for text in (error,) if isinstance(error, str) else error:
            assert " ".join(text.split()) in shown, done.err
        assert "Traceback" not in done.err

    def start(self, *arguments: str, program: tuple[str, ...] = MILLPOND, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment, **options
        )


class Node:
    """A node in a process of its own."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        words = ("up", "--data", str(data), "--listen", "127.0.0.1:0", *arguments)
        self.process = Command().start(*words, program=MILLPOND_WITH_HANGUP)
        self.panel: dict[str, str] = {}
        assert self.process.stdout is not None
        while "stop" not in self.panel:
            line = self.process.stdout.readline().decode()
            assert line, f"the node ended: {self.process.communicate()[1].decode()}"
            name, _, text = line.strip().partition("  ")
            self.panel[name] = text.strip()
        self.address = self.panel["listens on"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def lonely() -> Command:
    """The command where no node was named."""
    return Command()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    # Groups form, and lose a member, in less time than a person would want.
    quick_groups = ("group.initial.rebalance.delay.ms=100", "group.min.session.timeout.ms=500")
    made = Node(tmp_path_factory.mktemp("node") / "data", *(f"--set={each}" for each in quick_groups))
    yield made
    made.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def millpond(node: Node) -> Command:
    return Command(node.address)


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    started: list[Node] = []

    def start(*arguments: str, data: Path | None = None) -> Node:
        started.append(Node(data or tmp_path / "own", *arguments))
        return started[-1]

    yield start
    for each in started:
        each.stop(signal.SIGKILL)


class Quick:
    """What a test needs to find, made without the cost of a process."""

    def __init__(self, bootstrap: str) -> None:
        options = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.bootstrap = bootstrap
        self.admin = AdminClient(options)
        self.producer = Producer(options | {"acks": "all", "linger.ms": 0})

    def create(self, name: str, partitions: int = 1, **settings: str) -> str:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, config=config)])[name].result(60)
        self.producer.list_topics(name, timeout=20)
        return name

    def send(self, topic: str, *values: str | bytes, **options: Any) -> None:
        """The values as one batch, mostly."""
        for value in values:
            self.producer.produce(topic, value, **options)
        assert self.producer.flush(60) == 0


@pytest.fixture(scope="session")
def quick(node: Node) -> Quick:
    return Quick(node.address)


@pytest.fixture
def topic(quick: Quick, request: pytest.FixtureRequest) -> str:
    """A fresh topic of one partition."""
    return quick.create("".join(sign if sign.isalnum() else "-" for sign in request.node.name)[:200])


class Terminal:
    """A command in a terminal of 80 columns."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.screen, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        options = environment | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        options.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            [*MILLPOND, *arguments], stdin=side, stdout=side, stderr=side, env=options, start_new_session=True
        )
        os.close(side)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read_until(self, expected: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while expected not in self.text and time.monotonic() < deadline:
            if not select.select([self.screen], [], [], 0.2)[0]:
                continue
            try:
                # A piece may end within a sign.
                self.text += self._decoder.decode(os.read(self.screen, 65536))
            except OSError:
                break
        assert expected in self.text, self.text
        return self.text

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def finish(self) -> int:
        code = self.process.wait(60)
        with contextlib.suppress(OSError):
            while part := os.read(self.screen, 65536):
                self.text += self._decoder.decode(part)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.screen)


@pytest.fixture
def in_terminal(node: Node) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def run(*arguments: str, pager: str = "cat") -> Terminal:
        opened.append(Terminal(clean_environment(MILLPOND_BOOTSTRAP=node.address, PAGER=pager), *arguments))
        return opened[-1]

    yield run
    for each in opened:
        each.close()


READER = """
import json, sys, time
from confluent_kafka import Consumer
consumer = Consumer(json.loads(sys.argv[1]))
consumer.subscribe(sys.argv[2].split(","))
left, pace_seconds, is_reported = int(sys.argv[3]), float(sys.argv[4]), False
while True:
    message = consumer.poll(0.05)
    if message is not None and message.error() is None and left:
        consumer.commit(message, asynchronous=False)
        left -= 1
        time.sleep(pace_seconds)
    if consumer.assignment() and not is_reported and (left == 0 or pace_seconds):
        print("ready", flush=True)
        is_reported = True
    if left == 0 and consumer.assignment():
        consumer.pause(consumer.assignment())
"""


class Reader:
    """A member of a group in a process of its own: reads and commits so many records, then only stays a member."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, count: int, pace_seconds: float, **settings: Any
    ) -> None:
        options = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
        options |= {"enable.auto.commit": False} | {key.replace("_", "."): value for key, value in settings.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, json.dumps(options), topic, str(count), str(pace_seconds)],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def read_as(node: Node) -> Iterator[Callable[..., Reader]]:
    started: list[Reader] = []

    def start(group: str, topic: str, count: int = 0, pace_seconds: float = 0, **settings: Any) -> Reader:
        started.append(Reader(node.address, group, topic, count, pace_seconds, **settings))
        return started[-1]

    yield start
    for each in started:
        each.kill()
