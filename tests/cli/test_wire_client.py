"""Our own small client against a broker that behaves, and against peers that do not."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millpond.base.errors import MalformedMessage
from millpond.cli.wire_client import Unsupported, WireClient
from millpond.wire import messages as m


@contextmanager
def peer(answer: bytes) -> Iterator[tuple[str, int]]:
    """Answers the first request with these bytes and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        link, _ = listener.accept()
        with link:
            link.recv(65536)
            link.sendall(answer)
            link.shutdown(socket.SHUT_WR)
            link.recv(65536)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()
    thread.join(5)
    listener.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def test_the_newest_common_version_is_spoken(node: Any) -> None:
    host, _, port = node.address.rpartition(":")
    with WireClient(host, int(port)) as client:
        newest = client.ask(m.DescribeClusterRequest(), m.DescribeClusterResponse, (0, 2))
        assert newest.brokers[0].port == int(port)
        # The same connection goes on, and an older version does as well.
        oldest = client.ask(m.MetadataRequest(topics=[]), m.MetadataResponse, (1, 1))
        assert [each.node_id for each in oldest.brokers] == [newest.brokers[0].broker_id]
        with pytest.raises(Unsupported, match="Metadata"):
            client.ask(m.MetadataRequest(topics=[]), m.MetadataResponse, (99, 100))


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"", ConnectionError),
        (b"\0\0\0\x20half", ConnectionError),
        (struct.pack(">i", -5), MalformedMessage),
        (struct.pack(">i", 1 << 30), MalformedMessage),
        (framed(b"\0\0"), MalformedMessage),
        (framed(struct.pack(">ihi", 1, 0, 1 << 30)), MalformedMessage),
        (framed(struct.pack(">ihi", 2, 0, 0)), MalformedMessage),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_no_crash(answer: bytes, fault: type[Exception]) -> None:
    with peer(answer) as (host, port), WireClient(host, port, 5) as client, pytest.raises(fault):
        client.ask(m.ListTransactionsRequest(), m.ListTransactionsResponse, (0, 0))


def test_a_broker_that_lacks_the_api_is_told_apart(node: Any) -> None:
    nothing_known = framed(struct.pack(">ihi", 1, 0, 0))
    with peer(nothing_known) as (host, port), WireClient(host, port, 5) as client, pytest.raises(Unsupported):
        client.ask(m.ListTransactionsRequest(), m.ListTransactionsResponse, (0, 0))
