"""A client without a client library: frames of `wire.messages` over one blocking socket."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import time
from typing import Any

from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.records import Record, decode_batch, encode_batch

LENGTH = struct.Struct(">i")
CLIENT_ID = "raw"


class Closed(Exception):
    """The broker closed the connection."""


def frame(request: m.Message, version: int, correlation_id: int, client_id: str = CLIENT_ID) -> bytes:
    assert request.API_KEY is not None
    body = encode_request_header(request.API_KEY, version, correlation_id, client_id) + request.encode(version)
    return LENGTH.pack(len(body)) + body


class Raw:
    """One connection. `call` sends and waits; `send` and `receive` are its two halves."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        timeout_seconds: float = 20.0,
        *,
        context: ssl.SSLContext | None = None,
        client_id: str = CLIENT_ID,
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        self._client_id = client_id
        self._ids = itertools.count(1)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, request: m.Message, version: int) -> int:
        """Send without waiting; returns the correlation id."""
        correlation_id = next(self._ids)
        self.socket.sendall(frame(request, version, correlation_id, self._client_id))
        return correlation_id

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next reply without its length. Raises Closed when there is none."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return self._exactly(length)

    def receive(self, api_key: int, version: int) -> tuple[int, Any]:
        """The next reply: its correlation id, and the whole reply as a value."""
        reply = self.receive_frame()
        correlation_id, position = decode_response_header(reply, api_key, version)
        message, end = m.response_class(api_key).decode(reply, version, position)
        assert end == len(reply), f"{len(reply) - end} bytes follow the reply"
        return correlation_id, message

    def call(self, request: m.Message, version: int) -> Any:
        assert request.API_KEY is not None
        sent = self.send(request, version)
        received, message = self.receive(request.API_KEY, version)
        assert received == sent
        return message

    def is_closed(self, seconds: float = 20.0) -> bool:
        """Whether the broker closes the connection within this time, without another reply."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(count - len(parts))
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed("the connection ended")
            parts += part
        return bytes(parts)

    # The requests that most tests need.

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; dots in the names of settings are written as underscores."""
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            assignments=[],
            configs=[
                m.CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        reply = self.call(m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert not reply.topics[0].error_code, reply

    def topic_id(self, name: str) -> Any:
        topic = m.MetadataRequest.MetadataRequestTopic(name=name)
        reply = self.call(m.MetadataRequest(topics=[topic], allow_auto_topic_creation=False), 12)
        return reply.topics[0].topic_id

    def produce(self, topic: str, partition: int, records: bytes, acks: int = -1, version: int = 9) -> Any:
        """The reply for the only partition."""
        reply = self.call(produce_request(topic, partition, records, acks), version)
        return reply.responses[0].partition_responses[0]

    def fetch(self, topic: str, partition: int = 0, offset: int = 0, **wanted: Any) -> Any:
        """The reply for the only partition, with its records as bytes."""
        reply = self.call(fetch_request(topic, partition, offset, **wanted), 12)
        return reply.responses[0].partitions[0]

    def read_all(self, topic: str, partition: int = 0) -> list[Record]:
        """Every record from the start of the partition to its end."""
        result: list[Record] = []
        reply = self.fetch(topic, partition, 0, wait_ms=0)
        offset = reply.log_start_offset
        while offset < reply.high_watermark:
            reply = self.fetch(topic, partition, offset, wait_ms=0)
            assert not reply.error_code, reply
            read = records_of(reply.records)
            assert read, f"nothing at {offset}, the end is {reply.high_watermark}"
            result += [record for record in read if record.offset >= offset]
            offset = result[-1].offset + 1
        return result


def batch(*values: bytes, timestamp: int | None = None, **fields: Any) -> bytes:
    """A record batch of these values, with the current time."""
    stamp = time.time_ns() // 1_000_000 if timestamp is None else timestamp
    return encode_batch([Record(index, stamp, None, value) for index, value in enumerate(values)], **fields)


def records_of(data: bytes) -> list[Record]:
    """The records of whole batches; a truncated last one is left out."""
    return [record for position, _ in walk(data) for record in decode_batch(data, position)]


def produce_request(topic: str, partition: int, records: bytes, acks: int = -1) -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=partition, records=records)
    topics = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    return m.ProduceRequest(transactional_id=None, acks=acks, timeout_ms=10_000, topic_data=topics)


def fetch_partition(partition: int, offset: int, bytes_max: int = 1 << 20, leader_epoch: int = -1) -> Any:
    return m.FetchRequest.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=leader_epoch
    )


def fetch_request(
    topic: str,
    partition: int = 0,
    offset: int = 0,
    *,
    wait_ms: int = 500,
    bytes_min: int = 1,
    bytes_max: int = 50 << 20,
    partition_bytes_max: int = 1 << 20,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> m.FetchRequest:
    wanted = fetch_partition(partition, offset, partition_bytes_max, leader_epoch)
    return m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        session_id=session[0],
        session_epoch=session[1],
        topics=[m.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        forgotten_topics_data=[],
    )
