"""Measures one core of a node here, with a child process and a client that is cheaper than the node."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Final

from millpond.admin.plan import Engine
from millpond.base.errors import RemoteError
from millpond.base.ids import TopicPartition
from millpond.base.resource import Closable
from millpond.cli.errors import Failed
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError, check
from millpond.remote.reader import FETCH_NEWEST, fetch_request
from millpond.remote.topics import create_topic
from millpond.testing.process_node import NodeEnded, ProcessNode
from millpond.wire import messages as m
from millpond.wire.header import encode_request_header
from millpond.wire.records import Record, encode_batch

HOST: Final = "127.0.0.1"
LARGE: Final = "plan-large"
SMALL: Final = "plan-small"
BATCH_BYTES: Final = 900_000
WRITTEN_BYTES_MAX: Final = 400_000_000
"""Limits the disk space that the measurement uses."""

SMALL_VALUE_BYTES: Final = 100
IN_FLIGHT: Final = 8
CALL_SECONDS: Final = 30.0
PRODUCE_VERSION: Final = 9
_LENGTH: Final = struct.Struct(">i")


def measure(message_bytes: int, seconds: float) -> Engine:
    """Runs a node for about this long; its rates per second of processor time."""
    with tempfile.TemporaryDirectory(prefix="millpond-plan-") as folder:
        node = ProcessNode({"data.folder": folder, "listen": f"{HOST}:0"}, lambda *_, **__: None)
        try:
            port = node.start()
            large = _produce(LARGE, _batch(max(1, BATCH_BYTES // (message_bytes + 20)), message_bytes))
            small = _produce(SMALL, _batch(1, SMALL_VALUE_BYTES))
            with Cluster({"bootstrap.servers": f"{HOST}:{port}"}) as cluster:
                for topic, request in ((LARGE, large), (SMALL, small)):
                    create_topic(cluster, topic, 1)
                    _check_produced(cluster, topic, request)
            with _Pipe(port) as pipe:
                return _measure(pipe, lambda: _cpu_seconds(node.pid), large, small, seconds / 3)
        except (OSError, NodeEnded, ClientError, RemoteError) as error:
            raise Failed(f"The measurement failed: {error}.") from None
        finally:
            node.kill()


def _measure(
    pipe: _Pipe, cpu: Callable[[], float], produce_large: m.Message, produce_small: m.Message, seconds: float
) -> Engine:
    large, small = _framed(produce_large, PRODUCE_VERSION), _framed(produce_small, PRODUCE_VERSION)
    fetch_message = fetch_request(
        TopicPartition(LARGE, 0), 0, "read_uncommitted", fetch_bytes=BATCH_BYTES + 200_000, wait_ms=500
    )
    fetch = _framed(fetch_message, FETCH_NEWEST)
    rates = [
        _rate(cpu, lambda: pipe.repeat(large, seconds, WRITTEN_BYTES_MAX // len(large)), len(large)),
        _rate(cpu, lambda: pipe.repeat(fetch, seconds), len(large)),
        _rate(cpu, lambda: pipe.repeat(small, seconds), 1),
    ]
    return Engine(*rates)


def _check_produced(cluster: Cluster, topic: str, request: m.ProduceRequest) -> None:
    """Checks the response: a refusal must not look like a fast node."""
    response = cluster.leader(topic, 0).ask(request, m.ProduceResponse, newest=PRODUCE_VERSION)
    check(response.responses[0].partition_responses[0].error_code, "the node refused to write")


def _rate(cpu: Callable[[], float], work: Callable[[], int], weight: int) -> float:
    """The amount of `work` per second of processor time; `weight` is the amount per repetition."""
    before = cpu()
    count = work()
    # Processor time ticks in hundredths: a few ticks are not precise.
    return count * weight / max(cpu() - before, 0.03)


def _cpu_seconds(pid: int) -> float:
    """The processor time of a process; wall time where that is not available."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Pipe(Closable):
    """One connection that sends the same request repeatedly."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), CALL_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = memoryview(bytearray(1 << 18))

    def close(self) -> None:
        self._socket.close()

    def repeat(self, frame: bytes, seconds: float, count_max: int = 1 << 30) -> int:
        """Sends it for this long, with a few in flight; the number of responses."""
        deadline = time.monotonic() + seconds
        sent = answered = 0
        while answered < sent or (sent < count_max and time.monotonic() < deadline):
            while sent - answered < IN_FLIGHT and sent < count_max and time.monotonic() < deadline:
                self._socket.sendall(frame)
                sent += 1
            if answered < sent:
                self._skip_reply()
                answered += 1
        return answered

    def _skip_reply(self) -> None:
        for _ in self._parts(self._length()):
            pass

    def _length(self) -> int:
        (length,) = _LENGTH.unpack(b"".join(bytes(part) for part in self._parts(_LENGTH.size)))
        assert isinstance(length, int)
        return length

    def _parts(self, left: int) -> Iterable[memoryview]:
        while left:
            count = self._socket.recv_into(self._room[: min(left, len(self._room))])
            if not count:
                raise ConnectionError("the node closed the connection")
            left -= count
            yield self._room[:count]


def _framed(request: m.Message, version: int) -> bytes:
    assert request.API_KEY is not None
    body = encode_request_header(request.API_KEY, version, 1, "millpond") + request.encode(version)
    return _LENGTH.pack(len(body)) + body


def _batch(count: int, value_bytes: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    value = os.urandom(value_bytes)
    return encode_batch([Record(offset, now_ms, None, value) for offset in range(count)])


def _produce(topic: str, batch: bytes) -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    topics = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    return m.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topics)
