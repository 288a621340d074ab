"""What the real network costs: small echoes, sendfile against copying, idle connections.

python bench/network.py            all three, as a table
python bench/network.py --idle 10000
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import select
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import uvloop

from millpond.base.ports import FileRange, Link
from millpond.node.disk import RealDisk, RealFile
from millpond.node.network import SocketNetwork

FRAME_BYTES = 100
FILE_BYTES = 64 << 20


class Echo:
    """Sends back what it hears."""

    room = memoryview(bytearray(65536))

    def __init__(self, link: Link) -> None:
        self.link = link

    def buffer(self) -> memoryview:
        return self.room

    def received(self, count: int) -> None:
        self.link.send((bytes(self.room[:count]),))

    def drained(self) -> None: ...

    def closed(self) -> None: ...


class Serve(Echo):
    """Sends one whole file for every byte it hears."""

    file: RealFile

    def received(self, count: int) -> None:
        for _ in range(count):
            self.file.retain()
            self.link.send((b"head", FileRange(self.file, 0, FILE_BYTES)))


def serve(pipe: Connection, kind: str, sendfile: bool, path: str) -> None:
    """The server process: says its port, then for each message what processor time and memory it has used."""
    loop = uvloop.new_event_loop() if kind == "uvloop" else asyncio.new_event_loop()
    network = SocketNetwork(loop, on_fault=print, sendfile=sendfile)
    if path:
        Serve.file = RealDisk().open(path)
    listener = network.listen("127.0.0.1", 0, Serve if path else Echo)

    def answer() -> None:
        if pipe.recv() == "stop":
            loop.stop()
        else:
            pipe.send((time.process_time(), _resident_bytes()))

    loop.add_reader(pipe.fileno(), answer)
    pipe.send(listener.port)
    loop.run_forever()


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Server:
    """A server in a process of its own, so that its processor time is its own."""

    def __init__(self, kind: str, sendfile: bool = True, path: str = "") -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=serve, args=(theirs, kind, sendfile, path), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()

    def used(self) -> tuple[float, int]:
        self._pipe.send("used")
        seconds, resident = self._pipe.recv()
        return seconds, resident

    def stop(self) -> None:
        self._pipe.send("stop")
        self._process.join()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def echo(server: Server, connections: int, requests: int) -> int:
    """One frame under way on every connection."""
    socks = {sock.fileno(): sock for sock in (server.connect() for _ in range(connections))}
    frame = bytes(FRAME_BYTES)
    poll = select.epoll()
    for descriptor, sock in socks.items():
        poll.register(descriptor, select.EPOLLIN)
        sock.send(frame)
    done = 0
    while done < requests:
        for descriptor, _ in poll.poll():
            socks[descriptor].recv(65536)
            socks[descriptor].send(frame)
            done += 1
    for sock in socks.values():
        sock.close()
    return done


def download(server: Server, times: int) -> int:
    sock = server.connect()
    room = bytearray(1 << 20)
    for _ in range(times):
        sock.send(b"x")
        left = FILE_BYTES + 4
        while left:
            left -= sock.recv_into(room)
    sock.close()
    return times


def measure(server: Server, work: Callable[[], int]) -> tuple[float, float, int]:
    """Seconds of wall time and of the server's processor time, and how much was done."""
    used_before, _ = server.used()
    start = time.perf_counter()
    done = work()
    elapsed = time.perf_counter() - start
    return elapsed, server.used()[0] - used_before, done


def bench_echo(requests: int) -> None:
    for kind in ("uvloop", "asyncio"):
        for connections in (1, 16):
            server = Server(kind)
            echo(server, connections, requests // 10)
            elapsed, cpu, done = measure(server, lambda s=server, c=connections: echo(s, c, requests))
            server.stop()
            rate = f"{done / elapsed:9,.0f} requests/s  {cpu / done * 1e6:6.1f} us CPU each"
            print(f"echo      {kind:8} {connections:6} links  {rate}")


def bench_sendfile(times: int) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(FILE_BYTES))
        file.flush()
        for sendfile in (True, False):
            server = Server("uvloop", sendfile, file.name)
            download(server, 2)
            elapsed, cpu, done = measure(server, lambda s=server: download(s, times))
            server.stop()
            total = done * FILE_BYTES
            name = "sendfile" if sendfile else "copying"
            rate = f"{total / elapsed / 1e6:9,.0f} MB/s  {cpu / total * 1e12:6.0f} us CPU per MB"
            print(f"{name:9} uvloop        1 links  {rate}")


def bench_idle(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    for kind in ("uvloop", "asyncio"):
        server = Server(kind)
        _, before = server.used()
        socks = [server.connect() for _ in range(count)]
        time.sleep(0.5)
        seconds, after = server.used()
        time.sleep(1)
        idle = server.used()[0] - seconds
        cost = f"{(after - before) / count:9,.0f} bytes each  {idle:.4f} s CPU per s"
        print(f"idle      {kind:8} {count:6} links  {cost}")
        for sock in socks:
            sock.close()
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--downloads", type=int, default=40)
    parser.add_argument("--idle", type=int, default=10_000)
    options = parser.parse_args()
    bench_echo(options.requests)
    bench_sendfile(options.downloads)
    bench_idle(options.idle)


if __name__ == "__main__":
    main()
