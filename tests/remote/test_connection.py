"""Connections to a broker, and to peers that misbehave."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millpond.base.errors import MalformedMessage
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import ClusterError, Unreachable, Unsupported
from millpond.wire import messages as m
from support.node import Node


@contextmanager
def peer(answer: bytes) -> Iterator[tuple[str, int]]:
    """Answers the first request with these bytes and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()
    thread.join(60)
    listener.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def test_the_newest_common_version_is_used(node: Node) -> None:
    with BrokerConnection("127.0.0.1", node.port) as connection:
        newest = connection.ask(m.DescribeClusterRequest(), m.DescribeClusterResponse)
        assert newest.brokers[0].port == node.port
        # An older version works on the same connection.
        oldest = connection.ask(m.MetadataRequest(topics=[]), m.MetadataResponse, newest=1)
        assert [each.node_id for each in oldest.brokers] == [newest.brokers[0].broker_id]
        assert connection.version(m.MetadataRequest, newest=4) == 4
        with pytest.raises(Unsupported, match="Fetch"):
            connection.version(m.FetchRequest, newest=3)


def test_several_requests_may_be_in_flight(node: Node) -> None:
    with BrokerConnection("127.0.0.1", node.port) as connection:
        connection.send(m.MetadataRequest(topics=[]), m.MetadataResponse)
        connection.send(m.DescribeClusterRequest(), m.DescribeClusterResponse)
        assert connection.waiting_count == 2
        assert connection.receive(m.MetadataResponse).brokers
        assert connection.receive(m.DescribeClusterResponse).brokers
        assert connection.waiting_count == 0


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"", Unreachable),
        (b"\0\0\0\x20half", Unreachable),
        (struct.pack(">i", -5), MalformedMessage),
        (struct.pack(">i", (1 << 30) + 1), MalformedMessage),
        (framed(b"\0\0"), MalformedMessage),
        (framed(struct.pack(">ihi", 1, 0, 1 << 30)), MalformedMessage),
        (framed(struct.pack(">ihi", 2, 0, 0)), MalformedMessage),
    ],
)
def test_a_malformed_response_is_an_error(answer: bytes, fault: type[Exception]) -> None:
    with peer(answer) as (host, port), pytest.raises(fault):
        BrokerConnection(host, port, answer_seconds=5)


def test_a_broker_without_the_api_raises_unsupported() -> None:
    nothing_known = framed(struct.pack(">ihi", 1, 0, 0))
    with (
        peer(nothing_known) as (host, port),
        BrokerConnection(host, port, answer_seconds=5) as connection,
        pytest.raises(Unsupported, match="ListTransactions"),
    ):
        connection.ask(m.ListTransactionsRequest(), m.ListTransactionsResponse)


def test_an_unreachable_broker_is_reported_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ClusterError, match=f"no broker answers at 127.0.0.1:{port}") as raised:
        BrokerConnection("127.0.0.1", port)
    assert raised.value.retriable


def test_a_silent_broker_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Unreachable, match="has not answered ApiVersions in time"):
            BrokerConnection("127.0.0.1", port, answer_seconds=0.2)
