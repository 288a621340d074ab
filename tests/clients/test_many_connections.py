"""Ten thousand connections that do nothing cost little memory and next to no time."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time

import pytest

from millpond.wire import messages as m
from support.node import HOST, eventually
from support.raw import Raw, batch, fetch_request, frame

CONNECTIONS = 10_000
SPARE_DESCRIPTORS = 1000
BYTES_PER_CONNECTION_MAX = 16 << 10
RUNS = 40
ROUNDS = 50
SLOWER_AT_MOST = 3.0


def round_trips(node, raw):
    """What a write and a read cost over one busy connection: the best time on the clock, and the node's own work.

    The best of many short runs, because other processes on the machine may be in the way of any one of them.
    """
    best_seconds = float("inf")
    cpu_before = node.cpu_seconds()
    for _ in range(RUNS):
        began = time.perf_counter()
        for _ in range(ROUNDS):
            assert not raw.produce("busy", 0, batch(b"x" * 100), acks=1).error_code
            raw.call(fetch_request("busy", wait_ms=0, partition_bytes_max=500), 12)
        best_seconds = min(best_seconds, time.perf_counter() - began)
    return best_seconds, node.cpu_seconds() - cpu_before


def open_connections(port, count):
    """Connections that have said what every client says first, and have been answered."""
    greeting = frame(m.ApiVersionsRequest(), 0, 1)
    with contextlib.ExitStack() as held:
        connections = []
        for number in range(count):
            # Clients leave by many doors: one address has too few ports for a large limit.
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
    # Here and in the node every connection takes a descriptor: with a lower limit it is as many as it allows.
    count = min(CONNECTIONS, hard - SPARE_DESCRIPTORS)
    if count < 1000:
        pytest.skip(f"the system allows a process only {hard} descriptors")
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("busy")
        alone_seconds, alone_cpu = round_trips(node, raw)
        before_bytes = node.resident_bytes()
        descriptors = len(os.listdir(f"/proc/{node.pid}/fd"))
        held = open_connections(node.port, count)
        try:
            assert len(os.listdir(f"/proc/{node.pid}/fd")) >= descriptors + count
            each_bytes = (node.resident_bytes() - before_bytes) / count
            assert each_bytes < BYTES_PER_CONNECTION_MAX, f"{each_bytes:.0f} bytes for each connection"
            company_seconds, company_cpu = round_trips(node, raw)
            print(
                f"{count} connections, {each_bytes:.0f} bytes each; slower by {company_seconds / alone_seconds:.2f}, "
                f"more work by {company_cpu / alone_cpu:.2f}"
            )
            assert company_seconds < alone_seconds * SLOWER_AT_MOST
            assert company_cpu < alone_cpu * SLOWER_AT_MOST
        finally:
            for connection in held:
                connection.close()
        assert eventually(lambda: len(os.listdir(f"/proc/{node.pid}/fd")) <= descriptors + 5), "descriptors leak"
        round_trips(node, raw)
    assert node.terminate() == 0


def test_connections_that_come_and_go_leave_nothing_behind(make_node):
    node = make_node()
    greeting = frame(m.ApiVersionsRequest(), 0, 1)

    def visit(times):
        for _ in range(times):
            with socket.create_connection((HOST, node.port), timeout=5) as visitor:
                visitor.sendall(greeting)
                visitor.recv(4)

    visit(500)
    before_bytes = node.resident_bytes()
    descriptors = len(os.listdir(f"/proc/{node.pid}/fd"))
    visit(2000)
    assert eventually(lambda: len(os.listdir(f"/proc/{node.pid}/fd")) <= descriptors)
    assert node.resident_bytes() - before_bytes < 4 << 20
