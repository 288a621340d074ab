"""Ports for a test's servers, unique across processes that run at the same time.

Checking or binding a port does not reserve it: the system lets two such sockets have the same one. So each test
process claims a block of ports, by binding a datagram socket to its first number, and hands out the ports in turn.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from itertools import cycle
from typing import Final

HOST: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)
"""Below the ephemeral ports: a client that keeps connecting to a dead node's port could otherwise connect to itself,
and the node could not get its port back."""

BLOCK: Final = 100


class Ports:
    """The ports of one process."""

    def __init__(self, ports: range = PORTS) -> None:
        self._ports = ports
        self._claim: socket.socket | None = None
        """Held for the life of the process; a forked child claims another block."""
        self._coming: Iterator[int] = iter(())
        self._pid = 0

    def next_free(self) -> int:
        """A free port; reused only after all others of the block."""
        if self._pid != os.getpid():
            self._claim_block()
        for _, port in zip(self._ports, self._coming, strict=False):
            with contextlib.suppress(OSError), bound(port) as probe:
                probe.listen()
                return port
        raise OSError("no free port")

    def _claim_block(self) -> None:
        self._pid = os.getpid()
        # Not the global random state, which a test may have seeded: two processes would try the same blocks.
        firsts = random.SystemRandom().sample(self._ports[::BLOCK], len(self._ports) // BLOCK)
        for first in firsts:
            claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                claim.bind((HOST, first))
            except OSError:
                claim.close()
                continue
            self._claim, self._coming = claim, cycle(range(first, first + BLOCK))
            return
        # More processes than blocks: start anywhere.
        self._coming = cycle([*range(firsts[0], self._ports.stop), *range(self._ports.start, firsts[0])])


_ports: Final = Ports()


def free_port() -> int:
    """A port for a node or a proxy of this process."""
    return _ports.next_free()


def bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock
