"""Shared by the broker's tests: a link that records what is done to it, batches, and a broker called in process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from struct import Struct
from typing import Any

import pytest

from millpond.base.ports import FileRange, LinkHandler, ReplyPart
from millpond.broker.replication.partitions import Partition
from millpond.metadata.topics import NewTopic, TopicRef, decide_create_topics, decide_delete_topics
from millpond.sim.node import SimNode
from millpond.sim.world.clock import WALL_START_MS
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.records import Record, encode_batch

LENGTH = Struct(">i")


class FakeLink:
    """A link whose peer reads at once, or not at all while `stuck`; `events` records everything else done to it."""

    def __init__(
        self, peer: str = "10.0.0.1:5000", local_host: str = "10.0.0.9", listener: str = "PLAINTEXT"
    ) -> None:
        self.peer = peer
        self.local_host = local_host
        self.listener = listener
        self.is_encrypted = False
        self.certificate_name: str | None = None
        self.on_secured: Callable[[], None] | None = None
        self.handler: LinkHandler | None = None
        self.stuck = False
        self.events: list[str] = []
        self.sends = 0
        self.received = bytearray()
        self._queue: list[ReplyPart] = []

    # The port.

    def send(self, parts: Sequence[ReplyPart]) -> None:
        self.sends += 1
        self._queue += parts
        if not self.stuck:
            self._let_go()

    def unsent_bytes(self) -> int:
        return sum(map(len, self._queue))

    def unsent_memory_bytes(self) -> int:
        return sum(len(part) for part in self._queue if not isinstance(part, FileRange))

    def pause_reading(self) -> None:
        self.events.append("pause")

    def resume_reading(self) -> None:
        self.events.append("resume")

    def close(self) -> None:
        self.events.append("close")

    def abort(self) -> None:
        self.events.append("abort")

    # Called by tests.

    def say(self, data: bytes) -> None:
        """Bytes arrive from the peer."""
        assert self.handler is not None
        while data:
            room = self.handler.buffer()
            fitting = min(len(room), len(data))
            room[:fitting] = data[:fitting]
            data = data[fitting:]
            self.handler.received(fitting)

    def read_all(self) -> None:
        """The peer reads everything that is queued."""
        self.stuck = False
        self._let_go()
        assert self.handler is not None
        self.handler.drained()

    def read(self, count: int) -> None:
        """The peer reads this many bytes from the front of the queue."""
        part = self._queue[0]
        assert not isinstance(part, FileRange)
        self.received += part[:count]
        self._queue[:1] = [part[count:]] if len(part) > count else []

    def end(self) -> None:
        """Close the link: release what it still holds and notify its owner."""
        self._release(self._queue)
        self._queue = []
        assert self.handler is not None
        self.handler.closed()

    def frames(self) -> list[bytes]:
        """The complete frames read since the last call, without their length prefixes."""
        data, found = bytes(self.received), []
        while data:
            (length,) = LENGTH.unpack_from(data)
            found.append(data[4 : 4 + length])
            assert len(found[-1]) == length, "part of a frame"
            data = data[4 + length :]
        self.received.clear()
        return found

    def _let_go(self) -> None:
        for part in self._queue:
            if isinstance(part, FileRange):
                self.received += part.file.read_at(part.position, part.length)
            else:
                self.received += part
        self._release(self._queue)
        self._queue = []

    @staticmethod
    def _release(parts: Sequence[ReplyPart]) -> None:
        for part in parts:
            if isinstance(part, FileRange):
                part.file.release()


class FakeFile:
    """A file that only counts its holds."""

    def __init__(self, data: bytes = b"") -> None:
        self.path = "fake"
        self.data = data
        self.holds = 0

    def range(self) -> FileRange:
        """The whole file, retained."""
        self.holds += 1
        return FileRange(self, 0, len(self.data))  # type: ignore[arg-type]

    def read_at(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def release(self) -> None:
        assert self.holds > 0, "released more often than retained"
        self.holds -= 1


def batch(*values: bytes, key: bytes | None = b"k", timestamp: int = WALL_START_MS, **fields: Any) -> memoryview:
    """One batch of these values, in the form a decoded request holds."""
    records = [Record(place, timestamp, key, value) for place, value in enumerate(values)]
    return memoryview(bytearray(encode_batch(records, **fields)))


class Caller:
    """One connection to a broker in process: requests go in as bytes, replies come out as values or bytes."""

    def __init__(self, server: SimServer, **options: str) -> None:
        self.link = FakeLink(**options)
        self.connection: Any = server.broker.connections.accept(self.link)
        self.link.handler = self.connection
        self.client_id = "caller"
        self._server = server
        self._asked: list[tuple[int, int, int]] = []
        self._numbers = count(1)

    def send(self, request: m.Message, version: int, *, is_answered: bool = True) -> None:
        """Send a request without advancing time."""
        number = next(self._numbers)
        assert request.API_KEY is not None
        if is_answered:
            self._asked.append((number, request.API_KEY, version))
        body = encode_request_header(request.API_KEY, version, number, self.client_id) + request.encode(version)
        self.link.say(LENGTH.pack(len(body)) + body)

    def replies(self) -> list[Any]:
        """The replies since the last call."""
        result = []
        for frame in self.link.frames():
            number, key, version = self._asked.pop(0)
            correlation_id, position = decode_response_header(frame, key, version)
            assert correlation_id == number, "replies in a wrong order"
            message, end = m.response_class(key).decode(frame, version, position)
            assert end == len(frame)
            result.append(message)
        return result

    def ask(self, request: m.Message, version: int, *, within_ms: int = 1000) -> Any:
        """Send a request and wait for its reply; no other request may be in flight."""
        self.send(request, version)
        self._server.sim.run_until(lambda: bool(self.link.received), within_ms=within_ms)
        (reply,) = self.replies()
        return reply


class SimServer:
    """A broker in the simulated world, with helpers for tests."""

    def __init__(self, texts: dict[str, str] | None = None, seed: int = 0) -> None:
        self.sim = SimWorld(seed)
        self.node = SimNode(self.sim, texts=texts)
        assert self.node.start(), self.node.journal_lines

    @property
    def broker(self) -> Any:
        return self.node.broker

    @property
    def disk(self) -> Any:
        return self.node.disk

    def create(self, name: str = "pond", partitions: int = 1, **configs: str) -> Partition:
        """Create a topic and return its first partition. Settings are given with `_` for `.`."""
        topic = NewTopic(name, partitions, configs=tuple((n.replace("_", "."), text) for n, text in configs.items()))
        broker = self.broker
        self.submit(lambda image: decide_create_topics(image, broker.layers, [topic], broker.entropy, by_broker=True))
        return broker.partitions.get(name, 0)

    def delete(self, name: str) -> None:
        self.submit(lambda image: decide_delete_topics(image, self.broker.layers, [TopicRef(name)]))

    def submit(self, decide: Callable[[Any], Any]) -> Any:
        """Commit a decision and return its reply."""
        replies: list[Any] = []
        self.broker.controller.submit(decide).then(replies.append)
        self.sim.run_until(lambda: bool(replies), within_ms=1000)
        (reply,) = replies
        assert all(each.verdict.ok for each in reply), reply
        return reply

    def connect(self, **options: str) -> Caller:
        return Caller(self, **options)

    def run(self, duration_ms: int = 100) -> None:
        self.sim.run_for(duration_ms)

    def syncs(self, folder: str) -> int:
        """How often a file of this partition has been synced."""
        return sum(" sync " in line and f"/{folder}/" in line for line in self.disk.trace)


@pytest.fixture
def make_link() -> type[FakeLink]:
    return FakeLink


@pytest.fixture
def make_file() -> type[FakeFile]:
    return FakeFile


@pytest.fixture
def make_batch() -> Callable[..., memoryview]:
    return batch


@pytest.fixture
def make_server() -> type[SimServer]:
    return SimServer


@pytest.fixture
def server() -> SimServer:
    return SimServer()
