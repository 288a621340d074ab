"""Loads by raw sockets: the client costs almost nothing, so the broker is the limit."""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import time
from collections.abc import Sequence

from bench import raw
from bench.node import HOST
from bench.noise import Measured
from millpond.wire import messages as m

IN_FLIGHT = 5
"""Requests that a busy producer has in flight on one connection."""

PACE_PER_SECOND = 4000
OFFSET = struct.Struct(">q")
SPIN_SECONDS = 0.0003
"""A sleep cannot be trusted below this."""


class ProduceLarge:
    """Full batches on one connection, several requests in flight."""

    def __init__(
        self,
        port: int,
        topic: str,
        acks: int,
        value_bytes: int,
        bytes_max: int,
        authority: str = "",
        user: str = "",
        keys: int = 0,
    ) -> None:
        records, self._count = raw.full_batch(value_bytes, keys=keys)
        self._batch_bytes = len(records)
        self._frame = raw.produce_frame(topic, 0, records, acks)
        self._requests_max = max(bytes_max // len(records), IN_FLIGHT + 1)
        self._client = raw.RawClient(HOST, port, authority=authority, user=user)
        for _ in range(IN_FLIGHT):
            self._client.send(self._frame)
        for _ in range(IN_FLIGHT):
            raw.check_produced(self._client.receive())

    def run(self, seconds: float) -> Measured:
        client, frame = self._client, self._frame
        began = time.perf_counter()
        deadline = began + seconds
        for _ in range(IN_FLIGHT - 1):
            client.send(frame)
        sent = IN_FLIGHT - 1
        while time.perf_counter() < deadline and sent < self._requests_max:
            client.send(frame)
            client.skip()
            sent += 1
        for _ in range(IN_FLIGHT - 2):
            client.skip()
        raw.check_produced(client.receive())
        return {
            "seconds": time.perf_counter() - began,
            "messages": sent * self._count,
            "bytes": sent * self._batch_bytes,
            "requests": sent,
        }


class FetchLarge:
    """Reads a topic of equal batches repeatedly and discards it."""

    def __init__(
        self,
        port: int,
        topic: str,
        value_bytes: int,
        batches: int,
        batches_per_fetch: int = 1,
        authority: str = "",
        user: str = "",
    ) -> None:
        records, count = raw.full_batch(value_bytes)
        self._client = raw.RawClient(HOST, port, authority=authority, user=user)
        self._step_bytes = len(records) * batches_per_fetch
        self._step_count = count * batches_per_fetch
        self._frames = [
            raw.fetch_frame(topic, 0, first * count, self._step_bytes)
            for first in range(0, batches - batches_per_fetch + 1, batches_per_fetch)
        ]
        self._client.send(self._frames[0])
        reply = raw.decoded(self._client.receive(), 1, raw.FETCH_VERSION)
        assert isinstance(reply, m.FetchResponse)
        found = reply.responses[0].partitions[0]
        assert found.error_code == 0
        assert isinstance(found.records, memoryview)
        assert len(found.records) == self._step_bytes, "the topic does not hold what was written to it"

    def run(self, seconds: float) -> Measured:
        client, frames = self._client, self._frames
        began = time.perf_counter()
        deadline = began + seconds
        client.send(frames[0])
        fetches = 0
        while time.perf_counter() < deadline:
            client.send(frames[(fetches + 1) % len(frames)])
            self._skip()
            fetches += 1
        self._skip()
        fetches += 1
        return {
            "seconds": time.perf_counter() - began,
            "messages": fetches * self._step_count,
            "bytes": fetches * self._step_bytes,
            "requests": fetches,
        }

    def _skip(self) -> None:
        if self._client.skip() < self._step_bytes:
            raise RuntimeError("a fetch came back short")


class FetchOn(FetchLarge):
    """Reads a topic of equal batches from its beginning to its end, once in every slice."""

    def run(self, seconds: float) -> Measured:
        """Read for at most this long."""
        client, frames = self._client, self._frames
        began = time.perf_counter()
        deadline = began + seconds
        client.send(frames[0])
        fetches = 0
        for frame in frames[1:]:
            client.send(frame)
            self._skip()
            fetches += 1
            if time.perf_counter() > deadline:
                break
        self._skip()
        fetches += 1
        return {
            "seconds": time.perf_counter() - began,
            "messages": fetches * self._step_count,
            "bytes": fetches * self._step_bytes,
            "requests": fetches,
            "is_whole": float(fetches == len(frames)),
        }


class ProduceOne:
    """One record a request, one request in flight on each of many connections, as fast as they are answered."""

    def __init__(
        self, port: int, topic: str, acks: int, connections: int, partitions: int = 1, user: str = ""
    ) -> None:
        self._frames = _one_record_frames(topic, acks, partitions)
        self._sockets = [raw.RawClient(HOST, port, user=user).socket for _ in range(connections)]
        self._poll = select.epoll()
        for each in self._sockets:
            # Only `poll` waits for them.
            each.setblocking(True)
            self._poll.register(each.fileno(), select.EPOLLIN)
        for frame in self._frames:
            self._reply_bytes = _ask_once(self._sockets[0], frame)

    def run(self, seconds: float) -> Measured:
        frames, poll, reply_bytes = self._frames, self._poll.poll, self._reply_bytes
        read, write, now = os.read, os.write, time.perf_counter_ns
        turn, turns = 0, len(frames)
        waits: list[int] = []
        sent_at: dict[int, int] = {}
        began = now()
        deadline = began + int(seconds * 1e9)
        for each in self._sockets:
            sent_at[each.fileno()] = now()
            write(each.fileno(), frames[turn % turns])
            turn += 1
        open_requests = len(self._sockets)
        reply = b""
        while open_requests:
            for descriptor, _ in poll():
                reply = read(descriptor, 4096)
                if len(reply) != reply_bytes:
                    raise RuntimeError(f"an answer of {len(reply)} bytes, not {reply_bytes}")
                at = now()
                waits.append(at - sent_at[descriptor])
                if at < deadline:
                    sent_at[descriptor] = at
                    write(descriptor, frames[turn % turns])
                    turn += 1
                else:
                    open_requests -= 1
        took = (now() - began) / 1e9
        raw.check_produced(reply[raw.LENGTH.size :])
        return {"seconds": took, "messages": turn, "requests": turn, **percentiles_ms(waits)}


class ProducePaced:
    """One record a request at a fixed rate, one at a time, going round all connections and partitions."""

    def __init__(self, port: int, topic: str, connections: int, partitions: int) -> None:
        raise_descriptor_limit()
        self._frames = _one_record_frames(topic, raw.ACKS_LEADER, partitions)
        self._sockets = [socket.create_connection((HOST, port)) for _ in range(connections)]
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reply_bytes = _ask_once(each, self._frames[0])
        for frame in self._frames:
            _ask_once(self._sockets[0], frame)

    def run(self, seconds: float) -> Measured:
        frames, descriptors = self._frames, [each.fileno() for each in self._sockets]
        read, write, now = os.read, os.write, time.perf_counter
        gap = 1 / PACE_PER_SECOND
        waits: list[int] = []
        began = due = now()
        turn = 0
        while due - began < seconds:
            rest = due - now()
            if rest > SPIN_SECONDS:
                time.sleep(rest - SPIN_SECONDS)
            while (at := now()) < due:
                pass
            descriptor = descriptors[turn % len(descriptors)]
            write(descriptor, frames[turn % len(frames)])
            if len(read(descriptor, 4096)) != self._reply_bytes:
                raise RuntimeError("an answer of another size")
            waits.append(int((now() - at) * 1e9))
            turn += 1
            due = max(due + gap, at)
        return {"seconds": now() - began, "messages": turn, "requests": turn, **percentiles_ms(waits)}


class Idle:
    """Connections that send ApiVersions and are then idle."""

    def __init__(self, port: int, connections: int) -> None:
        raise_descriptor_limit()
        self._clients = []
        for _ in range(connections):
            client = raw.RawClient(HOST, port)
            client.send(raw.api_versions_frame())
            client.skip()
            self._clients.append(client)

    def run(self, seconds: float) -> Measured:
        time.sleep(seconds)
        return {"seconds": seconds, "connections": len(self._clients)}


class Spread:
    """Producers and a consumer for each partition of a topic, each at the node that leads it: one record a request,
    several requests in flight, as fast as they are answered, and whatever has come is fetched."""

    def __init__(self, port: int, producers_each: int, other_ports: Sequence[int] = ()) -> None:
        """`other_ports` are those of nodes that know nothing of the first and have a topic of the same name."""
        from bench.cores import TOPIC, leaders

        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._writes: dict[int, bytes] = {}
        self._readers: dict[int, Reader] = {}
        records = raw.batch(1, 100)
        asked = [each for known in (port, *other_ports) for each in leaders(known).items()]
        for partition, (_, leader_port) in asked:
            for _ in range(producers_each):
                descriptor = self._connect(leader_port)
                self._writes[descriptor] = raw.produce_frame(TOPIC, partition, records, raw.ACKS_LEADER)
                self._reply_bytes = _ask_once(self._sockets[descriptor], self._writes[descriptor])
            reader = Reader(TOPIC, partition, len(records))
            self._readers[self._connect(leader_port)] = reader

    def _connect(self, port: int) -> int:
        sock = socket.create_connection((HOST, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets[sock.fileno()] = sock
        self._poll.register(sock.fileno(), select.EPOLLIN)
        return sock.fileno()

    def run(self, seconds: float) -> Measured:
        poll, read, write, now = self._poll.poll, os.read, os.write, time.perf_counter_ns
        writes, readers, reply_bytes = self._writes, self._readers, self._reply_bytes
        began = now()
        deadline = began + int(seconds * 1e9)
        produced = consumed = fetches = 0
        for descriptor, frame in writes.items():
            write(descriptor, frame * IN_FLIGHT)
        for descriptor, reader in readers.items():
            write(descriptor, reader.frame())
        open_requests = len(writes) * IN_FLIGHT + len(readers)
        left_over = dict.fromkeys(writes, 0)
        while open_requests:
            for descriptor, _ in poll():
                reply = read(descriptor, 1 << 18)
                if (frame := writes.get(descriptor)) is not None:
                    count, left_over[descriptor] = divmod(left_over[descriptor] + len(reply), reply_bytes)
                    produced += count
                    if now() < deadline:
                        write(descriptor, frame * count)
                    else:
                        open_requests -= count
                    continue
                reader = readers[descriptor]
                fetched = reader.take(reply)
                if fetched is None:
                    continue
                consumed += fetched
                fetches += 1
                if now() < deadline:
                    write(descriptor, reader.frame())
                else:
                    open_requests -= 1
        for descriptor, frame in writes.items():
            # All answers were of the right size; the last of each connection is also read.
            _ask_once(self._sockets[descriptor], frame)
        return {
            "seconds": (now() - began) / 1e9,
            "messages": produced,
            "consumed": consumed,
            "fetches": fetches,
            "requests": produced + fetches,
        }


class Reader:
    """Fetches one partition from the current offset on; all of its batches have the same size."""

    WAIT_MS = 100
    BYTES_MAX = 1 << 16
    MARK = 0x0123456789ABCDEF
    """A placeholder for the offset in the encoded request."""

    def __init__(self, topic: str, partition: int, batch_bytes: int, wait_ms: int = WAIT_MS) -> None:
        self._batch_bytes = batch_bytes
        self._offset = 0
        self._came = b""
        frame = raw.fetch_frame(topic, partition, self.MARK, self.BYTES_MAX, wait_ms)
        # Encoded once: only the offset changes.
        self._before, _, self._after = frame.partition(OFFSET.pack(self.MARK))

    def frame(self) -> bytes:
        return self._before + OFFSET.pack(self._offset) + self._after

    def take(self, data: bytes) -> int | None:
        """The number of records in a complete response; None while it is incomplete."""
        self._came += data
        if len(self._came) < raw.LENGTH.size:
            return None
        (size,) = raw.LENGTH.unpack_from(self._came)
        if len(self._came) < raw.LENGTH.size + size:
            return None
        # All but the records is less than a batch.
        count: int = size // self._batch_bytes
        self._offset += count
        self._came = b""
        return count


def percentiles_ms(waits_ns: list[int]) -> Measured:
    waits_ns.sort()
    last = len(waits_ns) - 1
    return {
        name: waits_ns[min(int(last * share) + 1, last)] / 1e6
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))
    }


def _one_record_frames(topic: str, acks: int, partitions: int) -> list[bytes]:
    records = raw.batch(1, 100)
    return [raw.produce_frame(topic, partition, records, acks) for partition in range(partitions)]


def _ask_once(sock: socket.socket, frame: bytes) -> int:
    """Send one request and check the response; its size including the length prefix."""
    sock.sendall(frame)
    reply = sock.recv(4096)
    raw.check_produced(reply[raw.LENGTH.size :])
    return len(reply)


def raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
