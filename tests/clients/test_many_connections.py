"""Ten thousand idle connections cost little memory and next to no time."""

from __future__ import annotations

import contextlib
import os
import resource
import socket

import pytest

from millpond.wire import messages as m
from support.node import HOST, eventually
from support.raw import Raw, batch, fetch_request, frame

CONNECTIONS = 10_000
SPARE_DESCRIPTORS = 1000
BYTES_PER_CONNECTION_MAX = 16 << 10
ROUNDS = 2000
MORE_WORK_AT_MOST = 3.0


def round_trips(node, raw):
    """What writes and reads over one busy connection cost the node: its CPU time, as wall time includes other
    processes.
    """
    before = node.cpu_seconds()
    for _ in range(ROUNDS):
        assert not raw.produce("busy", 0, batch(b"x" * 100), acks=1).error_code
        raw.call(fetch_request("busy", wait_ms=0, partition_bytes_max=500), 12)
    return node.cpu_seconds() - before


def open_connections(port, count):
    """Connections that have completed the first request of every client."""
    greeting = frame(m.ApiVersionsRequest(), 0, 1)
    with contextlib.ExitStack() as held:
        connections = []
        for number in range(count):
            # Clients use several source addresses: one has too few ports for a large limit.
            address = ("127.0.0.1", 0) if number % 2 else ("127.0.0.2", 0)
            connection = socket.create_connection((HOST, port), timeout=20, source_address=address)
            connections.append(held.enter_context(connection))
            connection.sendall(greeting)
        for connection in connections:
            assert connection.recv(65536)
        held.pop_all()
    return connections


@pytest.mark.slow
def test_ten_thousand_idle_connections_hardly_cost_a_thing(make_node):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < CONNECTIONS + SPARE_DESCRIPTORS <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Every connection takes a descriptor here and in the node: a lower limit allows fewer connections.
    count = min(CONNECTIONS, hard - SPARE_DESCRIPTORS)
    if count < 1000:
        pytest.skip(f"the system allows a process only {hard} descriptors")
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("busy")
        alone = round_trips(node, raw)
        before_bytes = node.resident_bytes()
        descriptors = len(os.listdir(f"/proc/{node.pid}/fd"))
        held = open_connections(node.port, count)
        try:
            assert len(os.listdir(f"/proc/{node.pid}/fd")) >= descriptors + count
            each_bytes = (node.resident_bytes() - before_bytes) / count
            assert each_bytes < BYTES_PER_CONNECTION_MAX, f"{each_bytes:.0f} bytes for each connection"
            company = round_trips(node, raw)
            print(f"{count} connections, {each_bytes:.0f} bytes each; more work by {company / alone:.2f}")
            assert company < alone * MORE_WORK_AT_MOST
        finally:
            for connection in held:
                connection.close()
        assert eventually(lambda: len(os.listdir(f"/proc/{node.pid}/fd")) <= descriptors + 5), "descriptors leak"
        assert not raw.produce("busy", 0, batch(b"x" * 100), acks=1).error_code
    assert node.terminate() == 0


def test_connections_that_come_and_go_leave_nothing_behind(make_node):
    node = make_node()
    greeting = frame(m.ApiVersionsRequest(), 0, 1)

    def visit(times):
        for _ in range(times):
            with socket.create_connection((HOST, node.port), timeout=60) as visitor:
                visitor.sendall(greeting)
                visitor.recv(4)

    visit(500)
    before_bytes = node.resident_bytes()
    descriptors = len(os.listdir(f"/proc/{node.pid}/fd"))
    visit(2000)
    assert eventually(lambda: len(os.listdir(f"/proc/{node.pid}/fd")) <= descriptors)
    assert node.resident_bytes() - before_bytes < 4 << 20
