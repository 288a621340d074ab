"""How large partitions are on disk, by DescribeLogDirs, which confluent-kafka does not offer: we ask ourselves.

Only where brokers can be spoken to plainly; where that fails the size is simply not known.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Final

from millpond.base.errors import MalformedMessage
from millpond.cli.connect import Cluster
from millpond.cli.offsets import Partition
from millpond.wire import messages as m
from millpond.wire.header import encode_request_header

KEY: Final = 35
VERSION: Final = 1
"""The last one that needs no negotiation: every cluster since Kafka 1.0 answers it."""

ANSWER_SECONDS: Final = 3.0
ANSWER_BYTES_MAX: Final = 64 << 20
_CORRELATION_BYTES: Final = 4


def sizes_on(cluster: Cluster, brokers: dict[int, tuple[str, int]]) -> dict[tuple[int, Partition], int]:
    """Bytes by broker and partition, as far as they can be known."""
    if "security.protocol" in cluster.extras:
        return {}
    found = {}
    for broker, (host, port) in brokers.items():
        for partition, size in _ask(host, port):
            found[broker, partition] = size
    return found


def _ask(host: str, port: int) -> Iterable[tuple[Partition, int]]:
    body = m.DescribeLogDirsRequest(topics=None).encode(VERSION)
    try:
        with socket.create_connection((host, port), ANSWER_SECONDS) as link:
            head = encode_request_header(KEY, VERSION, 1, "millpond")
            link.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            (length,) = struct.unpack(">i", _read(link, 4))
            if not _CORRELATION_BYTES <= length <= ANSWER_BYTES_MAX:
                return []
            answer = _read(link, length)
        response, _ = m.DescribeLogDirsResponse.decode(memoryview(answer), VERSION, _CORRELATION_BYTES)
    except (OSError, MalformedMessage):
        return []
    return [
        ((topic.name, partition.partition_index), partition.partition_size)
        for result in response.results
        for topic in result.topics
        for partition in topic.partitions
        if not partition.is_future_key
    ]


def _read(link: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = link.recv(min(count - len(data), 1 << 16))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)
