"""A client without a client library: requests are encoded once and sent repeatedly.

A request costs one system call, so the broker is measured, not the client.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import struct
import time
from collections.abc import Mapping

from millpond.base.ports import Buffer
from millpond.base.scram import ScramClient
from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.records import Record, encode_batch

LENGTH = struct.Struct(">i")
CLIENT_ID = "bench"
BATCH_BYTES_MAX = 1_000_000
"""librdkafka's default limit for a batch."""

PRODUCE_VERSION = 10
FETCH_VERSION = 12
METADATA_VERSION = 12
API_VERSIONS_VERSION = 0
CREATE_VERSION = 7

MECHANISM = "SCRAM-SHA-256"
HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
PASSWORD = "bench"
"""The password of every user."""

ACKS_LEADER = 1
ACKS_ALL = -1


def framed(request: m.Message, version: int, correlation_id: int = 1) -> bytes:
    """A request with its header and length, ready to be sent."""
    assert request.API_KEY is not None
    body = encode_request_header(request.API_KEY, version, correlation_id, CLIENT_ID) + request.encode(version)
    return LENGTH.pack(len(body)) + body


def batch(count: int, value_bytes: int, keys: int = 0) -> bytes:
    """A record batch of `count` values of this size with the current time, optionally with `keys` different keys."""
    now_ms = time.time_ns() // 1_000_000
    value = (bytes(range(32, 127)) * (value_bytes // 95 + 1))[:value_bytes]
    named = (b"key-%07d" % (place % keys) if keys else None for place in range(count))
    return encode_batch([Record(place, now_ms, key, value) for place, key in enumerate(named)])


def full_batch(value_bytes: int, bytes_max: int = BATCH_BYTES_MAX, keys: int = 0) -> tuple[bytes, int]:
    """A batch of the size that a busy producer sends, and its number of records."""
    record_bytes = len(batch(2, value_bytes, keys)) - len(batch(1, value_bytes, keys))
    # Later records have longer offset deltas: a few bytes more each.
    count = max(1, (bytes_max - 100) // (record_bytes + 3))
    return batch(count, value_bytes, keys), count


def produce_frame(topic: str, partition: int, records: bytes, acks: int, version: int = PRODUCE_VERSION) -> bytes:
    data = m.ProduceRequest.PartitionProduceData(index=partition, records=records)
    request = m.ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    return framed(request, version)


def fetch_frame(
    topic: str, partition: int, offset: int, bytes_max: int, wait_ms: int = 500, version: int = FETCH_VERSION
) -> bytes:
    wanted = m.FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
    request = m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        session_epoch=-1,
        topics=[m.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    return framed(request, version)


def api_versions_frame() -> bytes:
    return framed(m.ApiVersionsRequest(), API_VERSIONS_VERSION)


_DRAIN = memoryview(bytearray(1 << 20))
"""The buffer for discarded data, shared: with one per client, a thousand clients would need a gigabyte."""


class RawClient:
    """One blocking connection; with TLS if an authority is given, and authenticated if a user is."""

    def __init__(
        self, host: str, port: int, timeout_seconds: float = 30.0, authority: str = "", user: str = ""
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if authority:
            context = ssl.create_default_context(cafile=authority)
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        self._head = bytearray(LENGTH.size)
        if user:
            self._log_in(user)

    def _log_in(self, user: str) -> None:
        client = ScramClient(MECHANISM, user, PASSWORD, secrets.token_hex(16))
        self.call(m.SaslHandshakeRequest(mechanism=MECHANISM), HANDSHAKE_VERSION)
        said: bytes | None = client.first()
        while said is not None:
            answer = self.call(m.SaslAuthenticateRequest(auth_bytes=said), AUTHENTICATE_VERSION)
            assert isinstance(answer, m.SaslAuthenticateResponse)
            if answer.error_code:
                raise PermissionError(answer.error_message)
            said = client.next(answer.auth_bytes)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, frame: Buffer) -> None:
        self.socket.sendall(frame)

    def receive(self) -> bytearray:
        """The next reply, without its length."""
        reply = bytearray(self._next_length())
        self._fill(memoryview(reply))
        return reply

    def skip(self) -> int:
        """Discard the next response; its size."""
        size = left = self._next_length()
        room = _DRAIN
        while left:
            left -= self._some(room[: min(left, len(room))])
        return size

    def call(self, request: m.Message, version: int) -> m.Message:
        """Send a request and wait for the response."""
        assert request.API_KEY is not None
        self.send(framed(request, version))
        return decoded(self.receive(), request.API_KEY, version)

    def create_topic(self, topic: str, timeout_seconds: float = 60.0) -> int:
        """Create a topic by requesting its metadata; the number of its partitions."""
        wanted = m.MetadataRequest.MetadataRequestTopic(name=topic)
        request = m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            reply = self.call(request, METADATA_VERSION)
            assert isinstance(reply, m.MetadataResponse)
            found = reply.topics[0]
            if not found.error_code and found.partitions and not any(each.error_code for each in found.partitions):
                return len(found.partitions)
            time.sleep(0.01)
        raise TimeoutError(f"topic {topic} did not come into being")

    def make_topic(
        self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int = -1
    ) -> None:
        """Create a topic by CreateTopics."""
        kind = m.CreateTopicsRequest
        configs = [kind.CreatableTopicConfig(name=name, value=text) for name, text in (settings or {}).items()]
        wanted = kind.CreatableTopic(
            name=topic, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=configs
        )
        reply = self.call(kind(topics=[wanted], timeout_ms=60_000), CREATE_VERSION)
        assert isinstance(reply, m.CreateTopicsResponse)
        if reply.topics[0].error_code:
            raise RuntimeError(f"topic {topic} was not made: {reply.topics[0].error_message}")

    def _next_length(self) -> int:
        self._fill(memoryview(self._head))
        (length,) = LENGTH.unpack(self._head)
        assert isinstance(length, int)
        return length

    def _fill(self, room: memoryview) -> None:
        at = 0
        while at < len(room):
            at += self._some(room[at:])

    def _some(self, room: memoryview) -> int:
        count = self.socket.recv_into(room)
        if not count:
            raise ConnectionError("the broker closed the connection")
        return count


def decoded(reply: Buffer, api_key: int, version: int) -> m.Message:
    """Decode a response without its length prefix."""
    _, position = decode_response_header(reply, api_key, version)
    message, _ = m.response_class(api_key).decode(reply, version, position)
    return message


def check_produced(reply: Buffer, version: int = PRODUCE_VERSION) -> None:
    """Raise on any error code: a fast refusal must not look like a fast broker."""
    message = decoded(reply, 0, version)
    assert isinstance(message, m.ProduceResponse)
    for topic in message.responses:
        for each in topic.partition_responses:
            if each.error_code:
                raise RuntimeError(f"the broker refused with code {each.error_code}: {each.error_message}")
