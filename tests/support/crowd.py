"""Thousands of clients that do harm by being slow, silent, deaf or restless, in a separate process.

`python tests/support/crowd.py KIND PORT COUNT TOPIC` connects, prints `ready`, and runs until its input ends; then it
prints how often it connected, as one line of JSON. It runs at the highest nice value: such clients are on other
machines, and the CPU time that they use here is not what is measured.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from millpond.wire import messages as m
from support.raw import fetch_request, frame, produce_request

HOST = "127.0.0.1"
NICE = 19
LORIS_SECONDS = 1.0
"""How often each sends a byte."""

VISIT_SECONDS = 1.0
"""How often each reconnects."""

READY_SHARE = 0.98
"""The share of connections needed before measuring; the last ones may be in the kernel's queue."""

CONNECTS_AT_ONCE = 50


class Crowd:
    """`count` connections that behave as their kind says. A lost connection is replaced."""

    def __init__(self, port: int, count: int, topic: str) -> None:
        self.port = port
        self.count = count
        self.topic = topic
        self.connects = 0
        self.losses = 0
        self.poll = select.epoll()
        self.sockets: dict[int, socket.socket] = {}
        self.draw = random.Random(7)

    def connect(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((HOST, self.port))
        self.connects += 1
        self.sockets[sock.fileno()] = sock
        self.poll.register(sock, select.EPOLLOUT)
        return sock

    def drop(self, sock: socket.socket) -> None:
        number = sock.fileno()
        if self.sockets.pop(number, None) is not None:
            self.poll.unregister(number)
            sock.close()

    def run(self) -> None:
        """Run until standard input ends."""
        self.poll.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
        is_told = False
        began = time.monotonic()
        next_step = 0.0
        while True:
            for _ in range(min(self.count - len(self.sockets), CONNECTS_AT_ONCE)):
                self.connect()
            is_full = len(self.sockets) >= self.count * READY_SHARE
            if not is_told and (is_full or time.monotonic() - began > 20):
                is_told = True
                print("ready", flush=True)
            for number, events in self.poll.poll(0.01):
                if number == sys.stdin.fileno():
                    return
                sock = self.sockets.get(number)
                if sock is not None:
                    self._on_event(sock, events)
            if time.monotonic() >= next_step:
                next_step = time.monotonic() + 0.05
                self.step()

    def _on_event(self, sock: socket.socket, events: int) -> None:
        try:
            if events & (select.EPOLLERR | select.EPOLLHUP):
                raise ConnectionError
            if events & select.EPOLLOUT:
                self.poll.modify(sock, self.wants())
                self.begin(sock)
            elif events & select.EPOLLIN:
                self.readable(sock)
        except BlockingIOError:
            pass
        except OSError:
            self.losses += 1
            self.drop(sock)

    # What the kinds do

    def wants(self) -> int:
        """The events to wait for once a connection is established."""
        return select.EPOLLIN

    def begin(self, sock: socket.socket) -> None:
        """The connection is established."""

    def readable(self, sock: socket.socket) -> None:
        if not sock.recv(65536):
            raise ConnectionError

    def step(self) -> None:
        """Called twenty times a second."""


class HalfOpen(Crowd):
    """Connect and send nothing, or only the length of a request."""

    def begin(self, sock: socket.socket) -> None:
        if sock.fileno() % 2:
            sock.send(struct.pack(">i", 1_000_000))


class Loris(Crowd):
    """Requests that come a byte at a time."""

    def __init__(self, port: int, count: int, topic: str) -> None:
        super().__init__(port, count, topic)
        self.request = frame(produce_request(topic, 0, bytes(3000)), 9, 1)
        self.sent: dict[socket.socket, int] = {}
        self.order: list[socket.socket] = []

    def begin(self, sock: socket.socket) -> None:
        self.sent[sock] = 0
        self.order.append(sock)

    def step(self) -> None:
        turns = max(1, int(len(self.order) * 0.05 / LORIS_SECONDS))
        turn, self.order = self.order[:turns], self.order[turns:]
        for sock in turn:
            at = self.sent.pop(sock)
            if sock.fileno() < 0:
                continue
            try:
                sock.send(self.request[at % len(self.request) :][:1])
            except OSError:
                self.losses += 1
                self.drop(sock)
                continue
            self.sent[sock] = at + 1
            self.order.append(sock)


class Deaf(Crowd):
    """Fetch everything and never read the response; disconnect after a while, and reconnect."""

    def __init__(self, port: int, count: int, topic: str) -> None:
        super().__init__(port, count, topic)
        fetch = fetch_request(topic, 0, 0, wait_ms=0, partition_bytes_max=50 << 20)
        self.request = b"".join(frame(fetch, 12, number) for number in range(4))
        self.request += frame(m.MetadataRequest(topics=None), 12, 9)
        self.order: list[socket.socket] = []

    def wants(self) -> int:
        return 0

    def begin(self, sock: socket.socket) -> None:
        sock.send(self.request)
        self.order.append(sock)

    def step(self) -> None:
        # Each stays for ten seconds.
        turns = len(self.order) // 200
        for sock in self.order[:turns]:
            self.drop(sock)
        del self.order[:turns]


class Restless(Crowd):
    """Connect, send one request, disconnect, and repeat."""

    def __init__(self, port: int, count: int, topic: str) -> None:
        super().__init__(port, count, topic)
        self.request = frame(m.ApiVersionsRequest(), 0, 1)
        self.order: list[socket.socket] = []

    def begin(self, sock: socket.socket) -> None:
        sock.send(self.request)
        self.order.append(sock)

    def step(self) -> None:
        turns = max(1, int(len(self.order) * 0.05 / VISIT_SECONDS))
        for sock in self.order[:turns]:
            self.drop(sock)
        del self.order[:turns]


class Frantic(Crowd):
    """The same without a pause, as fast as this process can: a few hundred at a time."""

    def __init__(self, port: int, count: int, topic: str) -> None:
        super().__init__(port, min(count, 200), topic)
        self.request = frame(m.ApiVersionsRequest(), 0, 1)

    def begin(self, sock: socket.socket) -> None:
        sock.send(self.request)

    def readable(self, sock: socket.socket) -> None:
        super().readable(sock)
        self.drop(sock)


KINDS: dict[str, type[Crowd]] = {
    "half-open": HalfOpen,
    "loris": Loris,
    "deaf": Deaf,
    "restless": Restless,
    "frantic": Frantic,
}


def main() -> None:
    kind, port, count, topic = sys.argv[1:5]
    os.nice(NICE - os.nice(0))
    crowd = KINDS[kind](int(port), int(count), topic)
    began = time.monotonic()
    crowd.run()
    seconds = time.monotonic() - began
    told = {
        "connects": crowd.connects,
        "losses": crowd.losses,
        "open": len(crowd.sockets),
        "seconds": seconds,
        "cpu_seconds": time.process_time(),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
